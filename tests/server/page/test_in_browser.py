"""The page as a person uses it: in Chromium, on a server of its own (extra `browser`)."""

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest

from models.compiler import CompileOptions, compile_onnx
from tests.models.painter import COLORS, LETTERBOX, painter, stripes
from tests.server.support import LIMIT_SECONDS, REQUEST_MEMORY, Packs, picture, serving_port

pytestmark = pytest.mark.browser

# A frontier is planned in it.
_WAIT_MS = 60_000
# Colours beside the names of classes; and those of a mask in the middle of each third.
_SWATCHES = "found => found.map(each => getComputedStyle(each).backgroundColor)"
_PAINTED = """canvas => [1, 3, 5].map(sixth => {
  const [x, y] = [canvas.width * sixth / 6, canvas.height / 2];
  const [red, green, blue, alpha] = canvas.getContext("2d").getImageData(x, y, 1, 1).data;
  return alpha ? `rgb(${red}, ${green}, ${blue})` : "clear";
})"""


@pytest.fixture
def server(packs: Packs) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    budget = 2 * (packs.smallest("tiny") + packs.smallest("pair")) + REQUEST_MEMORY
    with served(packs.repository, "--models", "tiny,pair", "--budget", budget) as found:
        yield found


@contextlib.contextmanager
def served(repository: Path, *settings: object) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Yield the process of a server, and its address."""
    given = map(str, ("--repository", repository, *settings, "--port", 0))
    command = [sys.executable, "-m", "cli", "serve", *given]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=root) as process:
        try:
            yield process, f"http://127.0.0.1:{serving_port(process)}/"
        finally:
            process.kill()


@pytest.fixture
def page() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        found = browser.new_page(viewport={"width": 1280, "height": 1200})
        found.set_default_timeout(_WAIT_MS)
        yield found
        browser.close()


def test_models_are_loaded_looked_at_planned_tried_and_unloaded(
    server: tuple[subprocess.Popen[bytes], str], page: Any, tmp_path: Path
) -> None:
    process, address = server
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)

    before = page.locator("#memory-sum").inner_text()
    page.get_by_text("The process holds").wait_for()
    page.get_by_role("button", name="Unload pair").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Unload pair").click()
    page.get_by_role("dialog").get_by_role("button", name="Unload").click()
    page.get_by_role("button", name="Load pair", exact=True).wait_for()
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="pair"))
    assert row.locator(".state-unloaded").inner_text() == "unloaded"
    assert page.locator("#memory-sum").inner_text() != before
    page.get_by_role("button", name="Load pair", exact=True).click()
    page.get_by_role("button", name="Unload pair").wait_for()

    page.get_by_role("button", name="Details tiny").click()
    page.locator("#arena rect").first.wait_for()
    (tmp_path / "picture.png").write_bytes(picture())
    page.get_by_label("Image file").set_input_files(tmp_path / "picture.png")
    page.locator("#answers li").first.wait_for()
    assert "class" in page.locator("#answers").inner_text()
    assert page.locator("#curl").inner_text().endswith("v2/models/tiny/versions/1:classify'")
    latency = page.locator("#recent circle")
    latency.first.wait_for()
    answered = latency.count()
    page.reload()
    page.get_by_role("button", name="Details tiny").click()
    latency.first.wait_for()
    assert latency.count() >= answered  # the server has the history
    (tmp_path / "broken.png").write_bytes(b"no image")
    page.get_by_label("Image file").set_input_files(tmp_path / "broken.png")
    page.get_by_role("alert").wait_for()

    page.get_by_role("button", name="Plan the frontier").click()
    page.get_by_role("slider").wait_for()
    page.get_by_role("slider").press("Home")
    least = page.locator("#most-said").inner_text().partition(",")[0]
    page.get_by_role("button", name="Replan").press("Enter")
    page.get_by_text(f"{least} of memory").wait_for()

    assert problems == [
        "Failed to load resource: the server responded with a status of 400 (Bad Request)"
    ]
    assert all(url.startswith((address, f"blob:{address}")) for url in asked)
    process.terminate()  # a page that is open does not hold up the end
    assert process.wait(LIMIT_SECONDS) == 0
    page.get_by_text("no connection").wait_for()


def test_a_mask_lies_over_its_picture_with_the_names_of_its_colours(
    page: Any, tmp_path: Path
) -> None:
    onnx.save(painter(), tmp_path / "m.onnx")
    options = CompileOptions(preprocess=LETTERBOX, labels=COLORS)
    compile_onnx(tmp_path / "m.onnx", tmp_path / "packs" / "painter", options)
    stripes(300, 100)[0].save(tmp_path / "stripes.png")
    with served(tmp_path / "packs", "--budget", "16MiB") as (_, address):
        page.goto(address)
        page.get_by_role("button", name="Details painter").click()
        page.get_by_label("Image file").set_input_files(tmp_path / "stripes.png")
        page.locator("#answers li").first.wait_for()
        said = page.locator("#answers li").all_inner_texts()
        swatches = page.locator("#answers .swatch").evaluate_all(_SWATCHES)
        painted = page.locator("#mask").evaluate(_PAINTED)
    assert sorted(each.partition(":")[0].strip() for each in said) == sorted(COLORS)
    named = dict(zip((each.partition(":")[0].strip() for each in said), swatches, strict=True))
    for stripe, label in enumerate(COLORS):
        assert painted[stripe] in (named[label], "clear"), label
    assert len(set(painted)) == len(COLORS)
    assert page.locator("#mask").is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390, 360])
def test_everybody_can_use_it(
    server: tuple[subprocess.Popen[bytes], str], page: Any, scheme: str, width: int
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(server[1])
    page.get_by_role("button", name="Details tiny").click()
    page.locator("#arena rect").first.wait_for()
    found = Axe().run(page)
    assert not found.response["violations"], found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    table = page.locator(".wide")
    assert table.evaluate("table => table.scrollWidth <= table.clientWidth"), "names are cut off"


def told(**state: Any) -> str:
    """A state that the page is sent."""
    budget = {"total_bytes": 8, "used_bytes": 4, "request_bytes": 2, "request_used_bytes": 0}
    shown: dict[str, Any] = {
        "version": "0",
        "budget": budget,
        "process": {"anonymous_bytes": 8, "file_bytes": 8, "limit_bytes": 32, "read_bytes": 0},
        "memory": {},
        "uploads": [],
        "search": None,
    }
    return f"event: state\ndata: {json.dumps(shown | state)}\n\n"


@pytest.mark.parametrize("width", [1280, 390])
def test_what_is_away_or_under_way_says_why_and_how_far(
    server: tuple[subprocess.Popen[bytes], str], page: Any, width: int
) -> None:
    reasons = {
        "mobilenetv1": "does not fit in the budget: needs 2.6 MiB, free 937 KiB of 8 MiB " * 4,
        "yolov4": "loading: planning, ways to stream, 3 of 10",
    }
    states = dict(zip(reasons, ("UNAVAILABLE", "LOADING"), strict=True))
    models = [
        {"name": name, "model": name, "state": states[name], "reason": reason, "weight_bytes": 9}
        for name, reason in reasons.items()
    ]
    uploads = [{"name": "new", "step": "receive", "detail": "3.0 MiB"}]
    body = told(models=models, uploads=uploads, search="operators on rows, 1 of 9")
    page.route(
        "**/page/events", lambda route: route.fulfill(body=body, content_type="text/event-stream")
    )
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(server[1])
    page.get_by_text("ways to stream, 3 of 10").wait_for()
    assert "Upload of new: receive, 3.0 MiB" in page.locator("#uploads").inner_text()
    assert "operators on rows, 1 of 9" in page.locator("#search").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    table = page.locator(".wide")
    assert table.evaluate("table => table.scrollWidth <= table.clientWidth")
    assert max(row.bounding_box()["height"] for row in page.locator("#models tr").all()) < 450


def test_a_frontier_is_given_up_when_another_model_is_looked_at(
    server: tuple[subprocess.Popen[bytes], str], page: Any
) -> None:
    page.route("**/page/models/tiny/frontier", lambda route: None)  # it does not come
    page.goto(server[1])
    page.get_by_role("button", name="Details tiny").click()
    page.get_by_role("button", name="Plan the frontier").click()
    page.get_by_text("Planning.").wait_for()
    with page.expect_event("requestfailed"):
        page.get_by_role("button", name="Details pair").click()
    assert page.get_by_role("button", name="Plan the frontier").is_enabled()
    assert page.get_by_role("alert").count() == 0
