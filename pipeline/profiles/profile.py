"""The profile of a pack on one machine: what one trace of it took, its disk, and plans that were measured.

pipeline/measuring/ measures it, pipeline/profiles/profile_file.py keeps it in the pack's folder. Seconds,
bytes.
"""

from collections.abc import Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Literal

from models.errors import ModelError
from models.network.fields import Checksum
from models.packs.manifest import checksum
from models.records import Bounds, NonNegativeInt, PositiveInt, Record, plain, to_json
from pipeline.devices.base import Tuning
from pipeline.planning.estimates import OperationTimes
from pipeline.planning.plan import Choice, Plan
from pipeline.profiles.delay_limits import Seconds, SweepLimits
from pipeline.profiles.machine import Machine
from pipeline.profiles.times import (
    CopyTime,
    Distribution,
    ReadTime,
    interpolated,
    plan_key,
)

# A quiet machine with a desktop and its services stays below.
_MOST_OTHERS = 0.1


def is_disturbed(others: float) -> bool:
    """Return whether so much other work makes times longer than predictions err anyway."""
    return others > _MOST_OTHERS


class ProfileError(ModelError):
    """There is no profile, or it does not hold for this pack on this machine."""


@dataclass(frozen=True, kw_only=True)
class MeasuredPlan(Record):
    """What passes of one exact plan took, in turns with those of ``pre``.

    ``key``: its ``plan_key``. ``ratio``: the median delay over that of ``pre`` in the same turn;
    ``spread``: its quartiles. ``rounds``: turns that count.
    """

    key: str
    architecture: str
    choice: Choice
    total_bytes: NonNegativeInt
    ratio: Seconds
    spread: tuple[Seconds, Seconds]
    rounds: PositiveInt


@dataclass(frozen=True, kw_only=True)
class Profile(Record):
    """See docs/research/profile.md, "Profile".

    ``manifest``: checksum of the pack's manifest.json. ``reads`` and ``copies``: r and c by bytes; none of
    a network without weights. ``pieces``: of each finest piece, without its launch, by traced passes with
    all weights in memory. ``resident``: of whole passes so. ``outside``: of a request, all that is not its
    pass. ``plans``: those that were measured. ``limits``: for the bound of exact plans, by ``plan_key``.
    ``tuning``: what its device found fastest; all times hold with it. ``others``: the part of the
    processors that other work took while it was measured, which makes times longer. ``exact``: of this very
    machine; never in a file. What was measured on one that differs slightly is no bound here.
    """

    format_version: Literal[3] = 3
    manifest: Checksum
    machine: Machine
    date: str
    reads: tuple[ReadTime, ...]
    copies: tuple[CopyTime, ...]
    pieces: tuple[Seconds, ...]
    resident: Distribution
    outside: Distribution
    plans: tuple[MeasuredPlan, ...] = ()
    limits: dict[str, SweepLimits] = field(default_factory=dict)
    tuning: Tuning = field(default_factory=Tuning)
    others: Annotated[float, Bounds(ge=0, le=1)] = 0.0
    exact: bool = True

    def __post_init__(self) -> None:
        if bool(self.reads) != bool(self.copies):
            raise ValueError("reads and copies: none were measured of one, and some of the other")

    @property
    def was_disturbed(self) -> bool:
        """Whether the machine was busy with other work while it was measured."""
        return is_disturbed(self.others)

    def __hash__(self) -> int:
        return hash(self.searched_on)

    @cached_property
    def searched_on(self) -> str:
        """The checksum of what plans are searched on: limits and other work only judge them."""
        return checksum(self.document({"limits", "others"}).encode())

    def document(self, leave_out: Set[str] = frozenset()) -> str:
        """Return it as JSON, as its file has it, but for what is to be left out."""
        return to_json(
            plain(self, without_defaults=True, leave_out={"exact", "shapes", *leave_out})
        )

    @cached_property
    def times(self) -> OperationTimes:
        """What estimates are made of."""
        copies = {item.n_bytes: item.seconds.median for item in self.copies}
        tables: dict[int, dict[int, float]] = {}
        for item in self.reads:
            tables.setdefault(item.depth, {})[item.n_bytes] = item.seconds.median
        known: dict[tuple[int, int], float] = {}

        def read(n_bytes: int, in_flight: int) -> float:
            key = n_bytes, in_flight
            if key not in known:
                by_depth = {each: interpolated(table, n_bytes) for each, table in tables.items()}
                known[key] = interpolated(by_depth, in_flight)
            return known[key]

        return OperationTimes(self.pieces, read, lambda n_bytes: interpolated(copies, n_bytes))

    def measured(self, plan: Plan) -> MeasuredPlan | None:
        """Return what was measured of exactly ``plan``; None: nothing."""
        key = plan_key(plan) if self.plans else ""
        return next((each for each in self.plans if each.key == key), None)

    def bound_seconds(self, plan: Plan) -> float | None:
        """Return what no pass of ``plan`` exceeds; None where its limits were not measured here."""
        limits = self.limits_of(plan)
        return None if limits is None else limits.bound_seconds(plan)

    def limits_of(self, plan: Plan) -> SweepLimits | None:
        """Return the limits of exactly this plan, where they were measured and hold here."""
        return self.limits.get(plan_key(plan)) if self.exact else None

    def with_limits(self, plan: Plan, limits: SweepLimits) -> "Profile":
        """Return this profile with the limits of ``plan``."""
        return replace(self, limits={**self.limits, plan_key(plan): limits})

    def with_plans(self, plans: tuple[MeasuredPlan, ...]) -> "Profile":
        """Return this profile with ``plans``, in place of what it has of the same ones."""
        again = {each.key for each in plans}
        others = (each for each in self.plans if each.key not in again)
        return replace(self, plans=(*others, *plans))


@dataclass(frozen=True, kw_only=True, eq=False)
class ShapedProfile(Profile):
    """The profile of the largest shape of a pack; ``shapes``: of the others, None where there is none.

    Each has a file of its own.
    """

    shapes: tuple[Profile | None, ...] = ()
