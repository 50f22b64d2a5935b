"""Deadlines of ``plan``: what is refused, and how."""

import pytest
import typer

from cli.planning.deadlines import deadlines_of, seconds_of


def test_times() -> None:
    assert seconds_of("50ms") == 0.05
    assert seconds_of("1.5s") == 1.5
    assert seconds_of(None) is None


def test_a_deadline_a_model() -> None:
    assert deadlines_of(["a=50ms", "b=1s", "a=50ms"], ["a", "b", "c"]) == {"a": 0.05, "b": 1.0}


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["a"], "MODEL=50ms"),
        (["a=soon"], "not a time"),
        (["a=0ms"], "not a time"),
        (["x=1ms"], "none of the packs"),
        (["a=1ms", "a=2ms"], "has two"),
        (["a=" + 500 * "9"], "not a time"),
    ],
)
def test_what_is_no_deadline(texts: list[str], said: str) -> None:
    with pytest.raises(typer.BadParameter, match=said) as caught:
        deadlines_of(texts, ["a"])
    assert len(caught.value.message) < 120
