"""Medians, lines and verdict of contenders that took turns."""

from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.headline import compare
from benchmarks.servers.attempt import Attempt
from benchmarks.servers.contenders import MAPPED, OURS, RESIDENT
from benchmarks.tight_memory import holds, largest_difference, row, summary
from tests.examples import over

LIMIT, WEIGHTS = 200_000_000, 240_000_000


def made(seconds: Sequence[float], failure: str = "", peak: int = 100_000_000) -> Attempt:
    keys = ("anonymous", "file", "cgroup", "sampled_total")
    figures = {f"{key}_peak_bytes": peak for key in keys} | {"oom_kills": failure == "killed"}
    answers = [np.full(2, float(index), np.float32) for index in range(len(seconds))]
    return Attempt(LIMIT, answers, list(seconds), failure=failure, figures=figures)


def test_a_summary_leaves_out_first_answers() -> None:
    found = summary([made([9.0, 0.2, 0.4]), made([7.0, 0.3], peak=120_000_000)])
    assert found["seconds"] == 0.3
    assert found["requests_per_second"] == pytest.approx(3 / 0.9)
    assert (found["answered"], found["first_seconds"]) == (5, 8.0)
    assert found["anonymous_peak_bytes"] == 110_000_000


def test_a_line_keeps_its_columns_whatever_happened() -> None:
    lines = [
        row(RESIDENT, LIMIT, summary([made([], "killed")] * 2)),
        row(MAPPED, None, summary([made([1.0], "<HTTPError 504: 'Gateway Timeout'>")])),
        row(OURS, LIMIT, summary([made([1.0, 0.2])])),
    ]
    assert {len(line) for line in lines} == {78}
    assert "killed 2 of 2" in lines[0]
    assert "failed 1 of 1" in lines[1]
    assert lines[2].split() == ["Layerstream", "200", "0.200", "5.00", "100", "100", "100"]


@over(
    "ours, resident, limit, expected",
    [
        (made([1.0, 0.2]), made([], "killed"), LIMIT, True),
        (made([1.0], "killed"), made([], "killed"), LIMIT, False),
        (made([1.0, 0.2]), made([1.0, 0.1]), LIMIT, False),
        (made([1.0, 0.2]), made([1.0, 0.1]), None, True),
    ],
)
def test_the_claim_is_about_limits_below_the_weights(
    ours: Attempt, resident: Attempt, limit: int | None, expected: bool
) -> None:
    attempts = {(OURS, limit): [ours], (RESIDENT, limit): [resident]}
    assert holds(attempts, WEIGHTS, requests=2) is expected


def test_answers_are_compared_request_by_request() -> None:
    wrong = made([1.0, 1.0])
    wrong.answers[1] = wrong.answers[1] + np.float32(0.5)
    assert largest_difference({(OURS, None): [made([1.0] * 3)], (MAPPED, None): [wrong]}) == 0.5
    assert largest_difference({(OURS, None): [made([])]}) == 0.0


def headline_row(delay: float, memory: float) -> dict[str, float]:
    keys = ("anonymous_peak_bytes", "anonymous_held_bytes", "file_peak_bytes", "cgroup_peak_bytes")
    return {"delay_ms": delay, **dict.fromkeys(keys, memory)}


def test_the_headline_names_the_fastest_peer() -> None:
    ours, slow, fast = headline_row(500, 200), headline_row(1000, 1000), headline_row(400, 800)
    found = compare({"layerstream": ours, "onnxruntime-resident": slow, "openvino-resident": fast})
    assert found["fastest_peer"] == "openvino-resident"
    assert found["delay_ms_ratio"] == 1.25
    assert found["ratios"]["onnxruntime-resident"]["delay_ms_ratio"] == 0.5
    assert found["met"]
    rows = {"layerstream": headline_row(601, 200), "onnxruntime-resident": slow}
    assert not compare({**rows, "openvino-resident": fast})["met"]
