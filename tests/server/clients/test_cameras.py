"""Frigate's plugin, deepstack-sdk and codeproject-ai-api, unmodified, get boxes of the shipped detector.

Their libraries are not this project's: they get an environment of their own. ``LAYERSTREAM_CAMERAS_PYTHON``
names one that is there.
"""

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from models.cells import FOLDER
from models.compiler import compile_onnx
from server.access.key_file import add_key
from tests.documents import pages
from tests.server.clients.environments import programs, served
from tests.server.support import LIMIT_SECONDS
from tests.shared import shared

pytestmark = pytest.mark.slow

_CALLS = Path(__file__).with_name("camera_calls.py")
_CLIENTS = ("deepstack-sdk==0.2.1", "codeproject-ai-api==0.1", "pydantic")
_LABELS = ("RBC", "WBC", "Platelets")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the clients."""
    folder = tmp_path_factory.mktemp("cameras")
    return programs(folder, *_CLIENTS, variable="LAYERSTREAM_CAMERAS_PYTHON") / "python"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs")
    compile_onnx(FOLDER / "detector.onnx", folder / "cells")
    return folder


@pytest.fixture
def port(repository: Path) -> Iterator[int]:
    flags = ("--deepstack", "--budget", "64MiB", "--queue-limit", "1")
    with served("--repository", str(repository), *flags) as found:
        yield found


def calls(python: Path, folder: Path, port: int, key: str, *plugin: str) -> dict[str, Any]:
    picture = folder / "cells.jpg"
    picture.write_bytes((FOLDER / "cells.jpg").read_bytes())
    done = subprocess.run(
        [python, _CALLS, str(port), str(picture), key, *plugin],
        capture_output=True,
        text=True,
        check=False,
        timeout=4 * LIMIT_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def expected(port: int) -> list[dict[str, Any]]:
    """What ``:detect`` finds, in DeepStack's words."""
    url = f"http://127.0.0.1:{port}/v2/models/cells:detect?score_threshold=0.4"
    asked = urllib.request.Request(url, (FOLDER / "cells.jpg").read_bytes())
    with urllib.request.urlopen(asked) as answer:
        found = json.load(answer)["detections"]
    names = ("x_min", "y_min", "x_max", "y_max")
    return [
        {"label": each["label"], "confidence": each["score"]}
        | dict(zip(names, map(round, each["box"]), strict=True))
        for each in found
    ]


def test_sdks(python: Path, port: int, tmp_path: Path) -> None:
    found, boxes = calls(python, tmp_path, port, ""), expected(port)
    assert len(boxes) > 10
    assert found["deepstack"]["detection"] == found["deepstack"]["custom"] == boxes
    assert (tmp_path / "drawn.png").stat().st_size > 0
    assert found["deepstack"]["refused"] == ["", "Invalid image"]  # without keys any will do
    assert found["codeproject"]["detection"] == found["codeproject"]["custom"] == boxes
    assert "Bad url supplied" in found["codeproject"]["nobody"]
    statuses = found["crowd"]["statuses"]
    assert set(statuses) == {"200", "503"}
    assert found["crowd"]["errors"]


def test_keys(python: Path, repository: Path, tmp_path: Path) -> None:
    key = add_key(tmp_path / "keys", "camera", "infer")
    flags = ("--deepstack", "--budget", "64MiB", "--keys", str(tmp_path / "keys"))
    with served("--repository", str(repository), *flags) as port:
        found = calls(python, tmp_path, port, key)
    assert len(found["deepstack"]["detection"]) > 10
    assert found["deepstack"]["refused"][0] == "Unknown error : 401 occured"
    assert found["codeproject"]["detection"] == "CodeProject.AI Server error: 401"


def test_frigate(python: Path, repository: Path, tmp_path: Path) -> None:
    """As docs/how-to/cameras.md has it: over one connection, boxes lie where those of the photograph do.

    Its limit of 0.1 s is its own; a machine that others use may miss it now and then.
    """
    plugin = shared("data", "peers", "frigate_deepstack.py")
    key = add_key(tmp_path / "keys", "camera", "infer")
    flags = ("--deepstack", "--budget", "64MiB", "--keys", str(tmp_path / "keys"))
    with served("--repository", str(repository), *flags) as port:
        found = calls(python, tmp_path, port, key, str(plugin), configured_path())
    boxes, late = found["frigate"]["boxes"], found["frigate"]["said"]
    first = next(each for each in boxes if each[0][1])
    assert sum(each == first for each in boxes) == len(boxes) - len(late)
    assert len(late) < len(boxes) / 4
    assert found["frigate"]["connections"] == 1
    assert found["frigate"]["refused"] == [[0] * 6] * 20
    assert len(first) == 20
    assert first == sorted(first, key=lambda box: -box[1])
    assert sum(near(box, each) for box in first for each in found["deepstack"]["detection"]) > 8


def configured_path() -> str:
    """What comes behind the address in the configuration that is shown."""
    (block,) = (
        each for each in pages()["docs/how-to/cameras.md"].blocks if each.language == "yaml"
    )
    found = re.search(r"api_url: http://layerstream:8080(/\S+)", block.text)
    assert found is not None
    return found[1]


def near(box: list[float], other: Mapping[str, Any]) -> bool:
    """Whether a row of the plugin (label, confidence, top, left, bottom, right) is this box."""
    if box[1] < 0.4 or _LABELS[int(box[0])] != other["label"]:
        return False
    edges = [box[3] * 640, box[2] * 480, box[5] * 640, box[4] * 480]
    names = ("x_min", "y_min", "x_max", "y_max")
    return all(abs(edge - other[name]) < 24 for edge, name in zip(edges, names, strict=True))
