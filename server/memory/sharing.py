"""Plans of several models that share one budget, as the service makes them."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.packs.pack import Pack
from pipeline.fitting.fit import Fitted, smallest_fitted
from pipeline.fitting.predict import Wanted
from pipeline.fitting.within import least_plan
from pipeline.planning.advice import chunk_advice
from pipeline.planning.plan import PlanError
from pipeline.planning.words import sized
from pipeline.profiles.profile import Profile
from pipeline.schedule.architectures import Architecture
from server.memory.budget import Budget, fit


@dataclass(frozen=True)
class Candidate:
    """A model that shall be served, and how; without a profile, plans follow rules of thumb."""

    pack: Pack
    architecture: Architecture
    wanted: Wanted
    profile: Profile | None = None


def even_share(free_bytes: int, least: Sequence[int]) -> int:
    """Return how many bytes the first of several models may take.

    That is what it needs, and an even share of what is left when all have what they need. Of the others
    those count that fit beside it, one after the other: what no plan holds is kept for nobody.

    Args:
        free_bytes: of the budget, for all of these models.
        least: what each model that shall still be loaded needs, the first one's first.
    """
    rest = max(free_bytes - least[0], 0)
    sharers = 1
    for needed in least[1:]:
        if needed <= rest:
            rest -= needed
            sharers += 1
    return least[0] + rest // sharers


def share_budget(candidates: Sequence[Candidate], budget: Budget) -> list[Fitted]:
    """Plan all ``candidates``: each gets its smallest plan where all fit, and an even share of the rest.

    The plans are reserved in ``budget``, under the models' names and positions.

    Raises:
        RefusedError: the smallest plan of one does not fit. PlanError: what is wanted cannot be, or not
        without a profile. ProfileError: a profile lacks a kernel.
    """
    smallest = [_smallest_bytes(candidate) for candidate in candidates]
    fitted = []
    for position, candidate in enumerate(candidates):
        share = even_share(budget.free_bytes, smallest[position:])
        within = fit(
            candidate.pack.manifest,
            candidate.architecture,
            candidate.pack.name,
            budget,
            share,
            beside_bytes=sum(smallest) - smallest[position],
            profile=candidate.profile,
            wanted=candidate.wanted,
        )
        _check(candidate, within)
        budget.reserve(f"{candidate.pack.name}#{position}", within.plan.memory)
        fitted.append(within)
    return fitted


def _check(candidate: Candidate, fitted: Fitted) -> None:
    """Refuse the smallest plan where even that has more weights in memory than was asked for.

    Raises:
        PlanError: it has.
    """
    limit, least = candidate.wanted.weight_bytes, fitted.plan.weight_bytes
    if limit is not None and least > limit:
        raise PlanError(
            f"{candidate.pack.name}: {sized(limit)} of weights in memory are too few; the least of "
            f"{candidate.architecture.name} is {sized(least)}: allow as much"
            + chunk_advice(candidate.pack.manifest, candidate.architecture)
        )


def _smallest_bytes(candidate: Candidate) -> int:
    manifest, architecture = candidate.pack.manifest, candidate.architecture
    if candidate.wanted.ring_bytes is not None:
        fitted = smallest_fitted(manifest, architecture, candidate.wanted, candidate.profile)
        return fitted.plan.total_bytes
    return least_plan(manifest, architecture, candidate.profile).total_bytes
