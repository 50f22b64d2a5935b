"""The list of passes: what one needs runs before it, and what is left out is not required."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from models.compiler.passes.record import Pass
from models.compiler.passes.reference import page
from models.compiler.passes.table import PASSES, TARGETS, listed, without
from models.errors import CompileError

PAGE = Path(__file__).parents[3] / "docs/reference/passes.md"


def names(passes: Sequence[Pass]) -> list[str]:
    return [step.name for step in passes]


def named(name: str) -> Pass:
    return next(step for step in PASSES if step.name == name)


def test_a_list_has_what_its_passes_need_in_front_of_them() -> None:
    graph, rows = named("find-regions"), named("find-rows")
    with pytest.raises(AssertionError, match="find-rows needs find-regions in front of it"):
        listed((rows, graph))
    with pytest.raises(AssertionError, match="find-regions needs keep-live"):
        listed((graph, rows))


def test_what_needs_an_excluded_pass_is_excluded() -> None:
    everything = TARGETS["blocked"]
    fewer = without(everything, {"find-rows"})
    assert set(names(everything)) - set(names(fewer)) == {"find-rows", "find-bottlenecks"}


@pytest.mark.parametrize("target", TARGETS)
def test_every_pass_that_is_not_required_can_be_excluded(target: str) -> None:
    for step in TARGETS[target]:
        if not step.required:
            assert step.name not in names(without(TARGETS[target], {step.name}))


def test_required_and_unknown_passes_are_refused() -> None:
    with pytest.raises(CompileError, match="pass 'cut' is required: A piece is one launch"):
        without(TARGETS["plain"], {"cut"})
    with pytest.raises(
        CompileError, match="there is no pass 'layout'; not required are rewrite-act"
    ):
        without(TARGETS["plain"], {"layout"})


def test_the_page_of_passes_is_the_list_that_runs() -> None:
    """docs/reference/passes.md: what ``python -m models.compiler.passes.reference`` prints."""
    assert PAGE.read_text("utf-8") == page()
