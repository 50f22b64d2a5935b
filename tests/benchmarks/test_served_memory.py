"""What the benchmark of served memory makes of its samples."""

from collections import Counter

import pytest

from benchmarks.served_memory import WHILE_CHANGING, CaseResult, slope
from tests.examples import over

MIB = 1 << 20


def test_slope() -> None:
    assert slope([(0, 5), (10, 25), (20, 45)]) == pytest.approx(2)
    assert slope([(3, 7)]) == 0


@over(
    "peak, step, status, holds",
    [
        (11 * MIB, 0, "infer 200", True),
        (11 * MIB + 1, 0, "infer 200", False),
        (11 * MIB, 0, "load 409", True),
        (11 * MIB, 0, "load 500", False),
        (11 * MIB, 200, "infer 200", True),
        (11 * MIB, 300, "infer 200", False),
    ],
)
def test_bounds(peak: int, step: int, status: str, holds: bool) -> None:
    left = [(changes, step * changes) for changes in range(25, 1001, 25)]
    result = CaseResult("a", 4 * MIB, 6 * MIB, peak, peak, Counter([status]), left, WHILE_CHANGING)
    assert result.holds is holds


@over(
    "status, while_changing",
    [
        ("load 409", True),
        ("infer 404", True),
        ("replan 409", True),
        ("replan 503", False),
        ("infer 503", False),
        ("unload 404", False),
        ("upload 409", False),
    ],
)
def test_what_may_be_answered(status: str, while_changing: bool) -> None:
    answered = Counter(["infer 200", status])
    assert CaseResult("a", MIB, statuses=answered).failed == [status]
    result = CaseResult("a", MIB, statuses=answered, may=WHILE_CHANGING)
    assert result.failed == ([] if while_changing else [status])
