"""Percentiles are values that occurred, and mean what they say."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.percentiles import percentile, ratio, summary_ms


@given(st.lists(st.floats(0, 1e3), min_size=1), st.floats(0.1, 100))
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(
    values: list[float], percent: float
) -> None:
    ordered = sorted(values)
    found = percentile(ordered, percent)
    assert found in ordered
    assert sum(value <= found for value in ordered) >= len(ordered) * percent / 100 - 1e-9
    below = sum(value < found for value in ordered)
    assert below < len(ordered) * percent / 100 or below == 0


def test_a_summary_is_in_milliseconds() -> None:
    assert summary_ms([0.001, 0.003, 0.002]) == {
        "count": 3,
        "p50_ms": 2.0,
        "p99_ms": 3.0,
        "max_ms": 3.0,
    }
    assert summary_ms([]) == {"count": 0}


def test_a_ratio_of_nothing_is_none() -> None:
    assert ratio(1.0, 0.0) is None
    assert ratio(1.0, 3.0) == 0.333
