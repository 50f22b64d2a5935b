"""Triton's metrics: its names as they are, the counts of requests, text that Prometheus reads."""

import asyncio
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from server.faults import REASONS, Code, Outcome
from server.metrics.requests import (
    NAMES,
    InferenceStatistics,
    Passage,
    RequestMetrics,
    text,
)
from tests.examples import examples, over
from tests.server.conftest import SettingsFactory
from tests.server.support import ServiceUnderTest, inputs_for, picture, samples, serving

TINY = {"model": "tiny", "version": "1"}
# The client library reads every counter as if it had this suffix.
READ = {name: f"{name}_total" for name in NAMES}


async def test_names_and_counts(service: ServiceUnderTest) -> None:
    before = await service.metrics()
    for number in range(3):
        await service.infer("tiny", inputs_for("tiny", number))
    await service.client.post("/v2/models/tiny:classify", content=picture())
    await service.infer("tiny", inputs_for("pair"))
    values = await service.metrics()

    def value(name: str, **more: str) -> float:
        return values[READ[f"nv_inference_{name}"], frozenset({**TINY, **more}.items())]

    assert {name for name, _ in values if name.startswith("nv_")} == set(READ.values())
    assert {key for key in before if "nv_" in key[0]} == {key for key in values if "nv_" in key[0]}
    assert value("request_success") == value("count") == value("exec_count") == 4
    failures = {reason: value("request_failure", reason=reason) for reason in REASONS}
    assert failures == {**dict.fromkeys(REASONS, 0), "OTHER": 1}
    assert value("compute_input_duration_us") > 0
    assert value("compute_output_duration_us") > 0
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    total = value("request_duration_us")
    assert 0 < sum(value(f"{part}_duration_us") for part in parts) <= total + len(parts)


async def test_types_are_counters_without_a_suffix(service: ServiceUnderTest) -> None:
    shown = (await service.client.get("/metrics")).text
    for name in NAMES:
        assert f"# TYPE {name} counter\n" in shown
        assert f'\n{name}{{model="tiny",version="1"' in shown
        assert READ[name] not in shown


def totals(counted: RequestMetrics) -> dict[str, float]:
    """Return the sums of all counts of requests, by where they are exposed."""
    theirs = samples(text(counted.inferences))
    failures = {
        dict(labels)["reason"]: count
        for (name, labels), count in theirs.items()
        if name == READ["nv_inference_request_failure"]
    }
    assert failures.keys() == set(REASONS)
    (statistics,) = [figures.as_dict()["inference_stats"] for *_, figures in counted.inferences]
    family = next(iter(counted.collect(counted.models())))
    succeeded = sum(
        n for (name, _), n in theirs.items() if name == READ["nv_inference_request_success"]
    )
    return {
        "ours": sum(sample.value for sample in family.samples if sample.name.endswith("_total")),
        "theirs": succeeded + sum(failures.values()),
        "statistics": statistics["success"]["count"] + statistics["fail"]["count"],
    }


@examples(few=15, many=300)
@given(
    st.lists(st.tuples(st.sampled_from(Outcome), st.sampled_from([None, Passage(1, 1, 1, 1, 2)])))
)
def test_every_request_is_counted_once_wherever_requests_are(
    finished: list[tuple[Outcome, Passage | None]],
) -> None:
    counted = RequestMetrics()
    counted.expect("tiny", "1")
    for outcome, passage in finished:
        counted.end("tiny", "1", outcome, 0.1, passage)
    assert set(totals(counted).values()) == {len(finished)}


@over("outcome", Outcome)
def test_what_was_not_answered_has_one_reason(outcome: Outcome) -> None:
    counted = RequestMetrics()
    for _ in range(1000):
        counted.end("tiny", "1", outcome, 0.1)
    values = samples(text(counted.inferences))
    failed = {
        dict(labels)["reason"]: count
        for (name, labels), count in values.items()
        if name == READ["nv_inference_request_failure"] and count
    }
    assert failed == ({} if outcome is Outcome.OK else {outcome.reason: 1000})
    assert (outcome is Outcome.OK) == (outcome not in {code.outcome for code in Code})
    assert outcome.reason in {"", "REJECTED", "CANCELED", "BACKEND", "OTHER"}  # Triton's


def test_the_page_has_the_reason_of_each_outcome() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text(encoding="utf-8")
    (line,) = [line for line in page.splitlines() if "Reasons are" in line]
    reasons = re.findall(r"`([A-Z]+)` \(([^)]*)\)", line)
    documented = {
        outcome: reason for reason, listed in reasons for outcome in re.findall(r"`(\w+)`", listed)
    }
    assert documented == {outcome: outcome.reason for outcome in Outcome if outcome.reason}


LABELS = re.compile(r"""outcome=~?\\?"([^"\\]+(?:\\+\|[^"\\]+)*)\\?\"""")


def test_what_is_shipped_and_written_asks_for_outcomes_that_there_are() -> None:
    root = Path(__file__).parents[3]
    files = [*root.glob("deploy/**/*"), *root.glob("docs/**/*.md")]
    outcomes: set[str] = set()
    for file in files:
        if file.suffix in {".yml", ".py", ".json", ".md"}:
            for match in LABELS.finditer(file.read_text(encoding="utf-8")):
                outcomes |= set(re.split(r"\\*\|", match[1]))
    assert {"late", "deadline", "busy"} < outcomes
    assert outcomes <= set(Outcome)
    page = (root / "docs/reference/metrics.md").read_text(encoding="utf-8")
    (row,) = [
        line for line in page.splitlines() if line.startswith("| `layerstream_requests_total{")
    ]
    assert re.findall(r"`(\w+)`", row) == [*Outcome]


NAME = st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1, max_size=20)


@examples(few=8, many=200)
@given(names=st.dictionaries(NAME, NAME, min_size=1, max_size=5))
def test_whatever_models_are_called(names: dict[str, str]) -> None:
    counted = InferenceStatistics()
    for model, version in names.items():
        counted.of(model, version).add(Outcome.OK, 0.5, Passage(0.1, 0.1, 0.1, 0.1))
    values = samples(text(counted))
    for model, version in names.items():
        labels = frozenset({"model": model, "version": version}.items())
        assert values[READ["nv_inference_request_success"], labels] == 1
        assert values[READ["nv_inference_request_duration_us"], labels] == 500_000
    assert len(list(text_string_to_metric_families(text(counted)))) == len(NAMES)


def test_versions_that_keep_coming_are_forgotten() -> None:
    counted = InferenceStatistics()
    sizes = []
    for version in range(30):
        counted.of("tiny", str(version)).add(Outcome.BUSY, 0.1, None)
        sizes.append(text(counted).count("\nnv_"))
    assert sizes[-1] == sizes[20] < 200
    assert 'version="29"' in text(counted)


@pytest.mark.parametrize("turns", [1, pytest.param(250, marks=pytest.mark.slow)])
async def test_a_scrape_at_any_moment_of_loads_and_unloads(
    settings: SettingsFactory, turns: int
) -> None:
    """Nothing that comes and goes meanwhile makes it fail."""
    async with serving(settings()) as service:
        over = False
        statuses: list[int] = []

        async def scrape() -> None:
            while not over:
                statuses.append((await service.client.get("/metrics")).status_code)

        scraping = [asyncio.create_task(scrape()) for _ in range(2)]
        for turn in range(turns):
            for name in ("tiny", "pair") if turn % 2 else ("pair", "tiny"):
                for verb in ("unload", "load"):
                    path = f"/v2/repository/models/{name}/{verb}"
                    assert (await service.client.post(path)).status_code == 200
                await service.infer(name, inputs_for(name))
        over = True
        await asyncio.gather(*scraping)
    assert set(statuses) == {200}
    assert len(statuses) > turns
