"""Packs that shall share one budget, as commands plan them, and what is wanted of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pipeline.budget.budget import Budget
from pipeline.budget.holdings import Minimum, least_together, needed_by
from pipeline.budget.request_needs import Need
from pipeline.budget.sharing import (
    Activations,
    Sharer,
    Shares,
    partitioned_sharer,
    share_out,
    sharer,
)
from pipeline.fitting.wanted import Wanted
from pipeline.planning.found_plans import FoundPlans
from pipeline.profiles.found_plans_file import plans_of
from pipeline.profiles.profile import Profile
from pipeline.program.program import Program
from pipeline.schedule.architectures import Architecture


@dataclass(frozen=True)
class Candidate:
    """A model that shall be served, and how; without a profile, plans follow estimates.

    ``workers``: partitions that compute at once; where there are several, nothing else is wanted.
    """

    program: Program
    architecture: Architecture
    wanted: Wanted
    profile: Profile | None = None
    workers: int = 1

    @cached_property
    def known(self) -> FoundPlans:
        """Plans that were found for it before, from the file beside the pack."""
        return plans_of(self.program.pack)

    @property
    def question(self) -> tuple[Program, Architecture, Wanted, Profile | None, FoundPlans]:
        """The arguments of ``fit``."""
        return self.program, self.architecture, self.wanted, self.profile, self.known


def share_budget(
    candidates: Sequence[Candidate],
    budget: Budget,
    activations: Activations = "auto",
    *,
    at_once: bool = False,
) -> Shares:
    """Plan all ``candidates``, as ``share_out`` does.

    ``at_once``: where finding a plan takes long, one is made by rules of thumb instead.

    Raises:
        RefusedError: the smallest plan of a model does not fit. PlanError: there is no plan as wanted, or
            not without a profile.
    """
    return _shared(_sharers(candidates, at_once), budget, activations)


def share_served(
    candidates: Sequence[Candidate],
    budget: Budget,
    request_bytes: int | None,
    activations: Activations,
    *,
    at_once: bool = False,
) -> Shares:
    """Plan all ``candidates`` as a service does, which sets memory aside for requests first.

    ``request_bytes``: for requests, even if it is too little for a service; None: as a service chooses.
    ``at_once`` and errors: as of ``share_budget``.
    """
    sharers = _sharers(candidates, at_once)
    minima = _minima(candidates, sharers)
    needs = [each.need for each in minima]
    budget.set_aside(request_bytes, needs, least_together(minima, activations != "own"))
    return _shared(sharers, budget, activations)


def needed_by_all(candidates: Sequence[Candidate], activations: Activations) -> int:
    """Return the smallest budget in which a service has all ``candidates`` answer all requests.

    Raises:
        PlanError: as ``share_budget``.
    """
    return needed_by(_minima(candidates, _sharers(candidates)), activations != "own")


def _minima(candidates: Sequence[Candidate], sharers: Sequence[Sharer]) -> list[Minimum]:
    return [
        Minimum(sharer.least, Need.of(each.program.pack.manifest), sharer.alone)
        for each, sharer in zip(candidates, sharers, strict=True)
    ]


def _sharers(candidates: Sequence[Candidate], at_once: bool = False) -> list[Sharer]:
    sharers = map(_sharer, candidates)
    return [each.hurried() if at_once else each for each in sharers]


def _sharer(each: Candidate) -> Sharer:
    program = each.program
    if each.workers > 1:
        return partitioned_sharer(
            program.name, program, each.architecture, each.workers, each.profile
        )
    return sharer(
        program.name, program, each.architecture, each.profile, each.wanted, known=each.known
    )


def _shared(sharers: Sequence[Sharer], budget: Budget, activations: Activations) -> Shares:
    shares = share_out(sharers, budget, activations)
    shares.plans()
    return shares
