"""Figures in words are readable, and enough when they are typed back."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from pipeline.planning.words import milliseconds
from tests.examples import over


@over(
    "seconds, said",
    [
        (0.0, "0.0 ms"),
        (0.0123, "12.3 ms"),
        (1e-4, "0.1 ms"),
        (1e-7, "0.00010 ms"),
        (1.23e-6, "0.0012 ms"),
        (inf, "inf ms"),
    ],
)
def test_times(seconds: float, said: str) -> None:
    assert milliseconds(seconds) == said


@given(st.floats(1e-9, 1e6))
def test_a_time_is_never_rounded_to_nothing(seconds: float) -> None:
    enough = float(milliseconds(seconds, up=True).removesuffix(" ms"))
    assert enough >= 1e3 * seconds * (1 - 1e-12)
    assert 0.0 < float(milliseconds(seconds).removesuffix(" ms")) <= enough
