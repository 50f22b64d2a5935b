"""Plots: ticks are round, and every row of a document is named in its figure."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.plots.figures import STRONG, log_ticks, style
from cli.plots.measurements import plot_memory_delay, plot_resolutions, plot_search


@given(st.floats(1e-3, 1e4), st.floats(1.1, 1e5))
def test_ticks_are_round_and_enough(low: float, ratio: float) -> None:
    ticks = log_ticks(low, low * ratio)
    assert len(ticks) >= (2 if ratio > 1.3 else 0)
    assert all(low <= tick <= low * ratio for tick in ticks)
    assert all(len(f"{tick:.6g}".strip("0.").replace(".", "")) <= 6 for tick in ticks)
    if ratio >= 10:
        assert {f"{tick:e}"[0] for tick in ticks} <= {"1", "2", "5"}


def _row(label: str, mib: float, delay: float) -> dict[str, Any]:
    return {
        "architecture": label,
        "weight_bytes": int(mib * 2**20),
        "delay_ms": {"median": delay, "p95": 1.1 * delay},
    }


ROWS = [
    *(_row("pre", 245.6, 702.0), _row("2s-md", 199.0, 704.0), _row("auto@5%", 11.5, 720.0)),
    *(_row("onnxruntime-resident", 245.4, 703.0), _row("openvino-resident", 245.4, 701.0)),
]
CURVE = [
    {"weight_bytes": size << 20, "delay_seconds": 0.7 + 1 / size} for size in (4, 8, 16, 100, 199)
]


@pytest.mark.parametrize("kind", ["memory-delay", "search", "resolutions"])
def test_a_figure_names_what_it_shows(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    document = {
        "model": "yolov4",
        "resolution": 608,
        "rows": ROWS,
        "searches": {"2s-md": {"curve": CURVE, "chosen": CURVE[-1]}},
    }
    path = tmp_path / f"{kind}.svg"
    names = [row["architecture"] for row in ROWS]
    if kind == "memory-delay":
        plot_memory_delay(document, path)
    elif kind == "search":
        plot_search(document, path)
        names = ["2s-md, simulated", "chosen: 199 MiB", "measured", "pre, measured"]
    else:
        path = plot_resolutions(
            {"model": "m", "runs": [document, {**document, "resolution": 416}]}, tmp_path
        )
    text = path.read_text("utf-8")
    assert all(f">{name}</text>" in text for name in names)


def test_the_strong_colour_is_that_of_auto() -> None:
    """Of all that is drawn, only `auto` has the colour that stands out."""
    strong = [row["architecture"] for row in ROWS if style(row["architecture"])["color"] == STRONG]
    assert strong == ["auto@5%"]
    assert style("auto@5%")["zorder"] > max(
        style(row["architecture"])["zorder"] for row in ROWS[:2]
    )
