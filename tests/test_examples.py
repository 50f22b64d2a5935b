"""A table of cases as one test: all of them run, and those that fail are named."""

import inspect

import pytest

from tests.examples import over


def test_all_cases_run_and_those_that_fail_are_named() -> None:
    seen = []

    @over("number, word", [(1, "one"), (2, "two"), (3, "three")])
    def compare(given: int, number: int, word: str) -> None:
        seen.append(number)
        assert number == given, word

    assert [*inspect.signature(compare).parameters] == ["given"]
    with pytest.raises(ExceptionGroup, match="2 cases") as caught:
        compare(given=2)
    assert seen == [1, 2, 3]
    notes = [getattr(failed, "__notes__", []) for failed in caught.value.exceptions]
    assert notes == [["with (1, 'one')"], ["with (3, 'three')"]]


async def test_one_failure_is_told_as_it_is() -> None:
    @over("number", range(3), ids=["none", "one", "two"])
    async def small(number: int) -> None:
        assert number < 2

    with pytest.raises(AssertionError) as caught:
        await small()
    assert caught.value.__notes__ == ["with two"]
    with pytest.raises(AssertionError, match="no cases"):
        over("number", [])
