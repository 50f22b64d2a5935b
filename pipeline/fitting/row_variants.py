"""The variants of a model on rows: they depend on no budget, no profile and no machine's speed."""

from collections.abc import Callable
from functools import lru_cache, partial

from pipeline.planning.estimates import ArithmeticRows
from pipeline.planning.found_plans import PLANNER_VERSION, FoundPlans, canonical
from pipeline.planning.make import reads_into_arena
from pipeline.planning.row_variant import Variant, Variants
from pipeline.planning.rows.region_edges import group_regions
from pipeline.planning.rows.variants import find_variants
from pipeline.program.program import Program
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import Architecture


def row_variants(
    program: Program,
    architecture: Architecture,
    most_arena: int | None = None,
    known: FoundPlans | None = None,
) -> Variants:
    """Return the variants that plans of ``architecture`` may choose, the whole network first.

    ``most_arena``: the fastest and smallest of those that need so many bytes of an arena at most.
    What was found before is taken from ``known``, and what is found is kept there, and with ``program``.
    """
    if architecture.tuned != "auto":
        return _WHOLE
    into_arena = reads_into_arena(program, architecture)
    if known is None:
        return program.made(_searches)(most_arena, into_arena)
    question = canonical(
        {
            "planner": PLANNER_VERSION,
            "on": program.checksum,
            "most_arena": most_arena,
            "into_arena": into_arena,
        }
    )
    variants = known.variants(question)
    if variants is None:
        variants = program.made(_searches)(most_arena, into_arena)
        if variants.complete:
            known.add_variants(question, variants)
    return variants


_WHOLE = Variants((Variant((), 0, 0.0),))
_Search = Callable[[int | None, bool], Variants]
# Answers that are kept: small beside what is searched among.
_MOST_FOUND = 16


def _searches(program: Program) -> _Search:
    """Return what searches for variants of ``program``, and keeps the last that were found."""
    return lru_cache(maxsize=_MOST_FOUND)(partial(_search, program))


def _search(program: Program, most_arena: int | None, into_arena: bool) -> Variants:
    network = row_network(program)
    times = ArithmeticRows(network)
    variants = find_variants(
        network,
        times,
        times.pieces(),
        most_arena=most_arena,
        into_arena=into_arena,
        in_groups=list(group_regions(program)),
    )
    # A network without activations of known size has no ways, and nothing to put on rows.
    return variants if variants.variants else _WHOLE
