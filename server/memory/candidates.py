"""Packs that shall share one budget, as commands know them, with what is wanted of each."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.packs.manifest import Manifest
from models.packs.pack import Pack
from pipeline.fitting.wanted import Wanted
from pipeline.profiles.profile import Profile
from pipeline.schedule.architectures import Architecture
from server.memory.budget import Budget
from server.memory.request_needs import Need
from server.memory.sharing import Activations, Shares, share_out, sharer


@dataclass(frozen=True)
class Candidate:
    """A model that shall be served, and how; without a profile, plans follow rules of thumb."""

    pack: Pack
    architecture: Architecture
    wanted: Wanted
    profile: Profile | None = None

    @property
    def need(self) -> Need:
        """What requests to it take."""
        return Need.of(self.pack.manifest)

    @property
    def question(self) -> tuple[Manifest, Architecture, Wanted, Profile | None]:
        """What ``fit`` is asked."""
        return self.pack.manifest, self.architecture, self.wanted, self.profile


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
    shares.plans()
    return shares
