"""Packs that shall share one budget, as commands know them, with what is wanted of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.packs.pack import Pack
from pipeline.fitting.fit import Fitted
from pipeline.fitting.predict import Wanted
from pipeline.planning.advice import chunk_advice
from pipeline.planning.plan import PlanError
from pipeline.planning.words import sized
from pipeline.profiles.profile import Profile
from pipeline.schedule.architectures import Architecture
from server.memory.budget import Budget
from server.memory.sharing import Activations, Shares, share_out, sharer


@dataclass(frozen=True)
class Candidate:
    """A model that shall be served, and how; without a profile, plans follow rules of thumb."""

    pack: Pack
    architecture: Architecture
    wanted: Wanted
    profile: Profile | None = None


def share_budget(
    candidates: Sequence[Candidate], budget: Budget, activations: Activations = "auto"
) -> Shares:
    """Plan all ``candidates``, as ``share_out`` does.

    Raises:
        RefusedError: the smallest plan of one does not fit. PlanError: what is wanted cannot be, or not
        without a profile. ProfileError: a profile lacks a kernel.
    """
    sharers = [
        sharer(each.pack.name, each.pack.manifest, each.architecture, each.profile, each.wanted)
        for each in candidates
    ]
    shares = share_out(sharers, budget, activations)
    for candidate, fitted in zip(candidates, shares.plans(), strict=True):
        _check(candidate, fitted)
    return shares


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
