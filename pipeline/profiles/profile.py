"""The profile of a pack on one machine: r_i, c_i and k_i of seed 003 as distributions, and what they give.

pipeline/measuring/profiling.py measures it, pipeline/profiles/profile_file.py keeps it in the pack's
folder. Seconds, bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import cycle
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from models.errors import ModelError
from models.network.fields import Checksum
from models.packs.manifest import checksum
from pipeline.devices.base import Tuning
from pipeline.planning.plan import Plan
from pipeline.profiles.delay_limits import Seconds, SweepLimits
from pipeline.profiles.machine import Machine
from pipeline.profiles.times import (
    RECORD,
    CopyTime,
    Distribution,
    MeasuredRows,
    Overlap,
    Quantile,
    ReadTime,
    first_key,
    group_key,
    interpolated,
    order_of,
    piece_key,
    plan_key,
    row_keys,
)
from pipeline.program.choice import choose_pieces, finest_positions
from pipeline.program.program import Program
from pipeline.program.region_plan import Region
from pipeline.program.row_network import RowNetwork
from pipeline.program.steps import Phase, RegionSteps, Step, regions_of
from pipeline.program.work import phase_seconds
from pipeline.timing.durations import Durations, reads_in_flight
from pipeline.timing.timeline import bound

# A quiet machine with a desktop and its services stays below.
_MOST_OTHERS = 0.1
# Regions whose phases are remembered: those of the few variants that one search tries.
_MOST_PHASES = 256


def is_disturbed(others: float) -> bool:
    """Return whether so much other work makes times longer than predictions err anyway."""
    return others > _MOST_OTHERS


class ProfileError(ModelError):
    """There is no profile, or it does not hold for this pack on this machine."""


class Profile(BaseModel):
    """See docs/research/profile.md, "Profile".

    ``manifest``: checksum of the pack's manifest.json. ``reads`` and ``copies``: r and c by bytes; none of
    a network without weights. ``kernels``: k by ``piece_key``, quiet, weights in memory.
    ``slowdown``: by how much kernels are slower beside a thread that reads. ``overlaps``: what changes in
    sweeps, by ``order_of`` their plan. ``outside``: of a request, all that is not its sweep. ``phases``: by
    how much phases of regions take longer than their operators one by one. ``loop``: what each step takes
    beside its kernel in sweeps that read; None: it is in ``kernels``. ``launch``: what a step takes less
    that is launched with the one before it, usually. ``whole``: by how much sweeps take longer than usual
    kernels one after the other. ``limits``: by ``plan_key``.
    ``tuning``: what its device found fastest; all times hold with it. ``others``: the part of the
    processors that other work took while it was measured, which makes times longer. ``exact``: of this very
    machine; never in a file. What was measured on one that differs slightly is no bound here.
    """

    model_config = RECORD

    format_version: Literal[2] = 2
    manifest: Checksum
    machine: Machine
    date: str
    reads: tuple[ReadTime, ...]
    copies: tuple[CopyTime, ...]
    kernels: dict[str, Distribution]
    slowdown: Seconds
    overlaps: dict[str, Overlap] = {}
    outside: Distribution
    phases: Seconds = 1.0
    loop: Distribution | None = None
    launch: Seconds = 0.0
    whole: Seconds = 1.0
    tuning: Tuning = Tuning()
    limits: dict[str, SweepLimits] = {}
    others: Annotated[float, Field(ge=0, le=1)] = 0.0
    exact: Annotated[bool, Field(exclude=True)] = True

    @model_validator(mode="after")
    def _check_transfers(self) -> Self:
        if bool(self.reads) != bool(self.copies):
            raise ValueError("reads and copies: none were measured of one, and some of the other")
        return self

    @property
    def was_disturbed(self) -> bool:
        """Whether the machine was busy with other work while it was measured."""
        return is_disturbed(self.others)

    def __hash__(self) -> int:
        return hash(self.searched_on)

    @cached_property
    def searched_on(self) -> str:
        """The checksum of what plans are searched on: limits and other work only judge them."""
        left_out = {"limits", "others"}
        return checksum(self.model_dump_json(exclude=left_out, exclude_defaults=True).encode())

    def durations(self, plan: Plan, quantile: Quantile = "median") -> Durations:
        """Return the seconds of every operation of ``plan``, reads for the next sweep included.

        Raises:
            ProfileError: one of its kernels was not measured.
        """
        depth = plan.choice.depth
        factors = self.overlaps.get(order_of(plan), Overlap(slowdown=self.slowdown))
        beside = reads_in_flight(plan.stages, depth)
        reads = [
            factors.read * self._read(group.read_bytes, many, depth, quantile)
            for group, many in zip(cycle(plan.groups), beside, strict=False)
        ]
        times = [tuple(reads)]
        if plan.architecture.copies:
            copies = [self.copy_seconds(group.length, quantile) for group in plan.groups]
            times.append(tuple(factors.copying * seconds for seconds in copies))
        loop = 0.0 if self.loop is None or not plan.groups else self.loop.at(quantile)
        kernels = list(self._step_seconds(plan.steps, quantile))
        if quantile == "median":  # all kernels of a sweep together are what is usual of it
            usual = [self.whole * seconds for seconds in kernels]
            kernels = _together(usual, plan.runs, self.launch)
        else:  # no limit is below what is usual
            kernels = [max(self.whole, 1.0) * seconds for seconds in kernels]
        times.append(tuple(loop + each for each in kernels))
        return Durations(tuple(times), depth, factors.slowdown, factors.disturbance)

    def _read(self, n_bytes: int, many: int, depth: int, quantile: Quantile) -> float:
        """Return r of a read that is one of ``many``; no limit counts on fewer than ``depth``."""
        seconds = self.read_seconds(n_bytes, many, quantile)
        if quantile != "max":
            return seconds
        return max(seconds, self.read_seconds(n_bytes, depth, quantile))

    def read_seconds(self, n_bytes: int, depth: int = 1, quantile: Quantile = "median") -> float:
        """Return r of one read of ``n_bytes`` while ``depth`` are in flight."""
        key = (n_bytes, depth, quantile)
        if key not in self._read_cache:
            tables: dict[int, dict[int, float]] = {}
            for item in self.reads:
                tables.setdefault(item.depth, {})[item.n_bytes] = item.seconds.at(quantile)
            by_depth = {each: interpolated(table, n_bytes) for each, table in tables.items()}
            self._read_cache[key] = interpolated(by_depth, depth)
        return self._read_cache[key]

    def copy_seconds(self, n_bytes: int, quantile: Quantile = "median") -> float:
        """Return c of one copy of ``n_bytes``."""
        table = {item.n_bytes: item.seconds.at(quantile) for item in self.copies}
        return interpolated(table, n_bytes)

    def bound_seconds(self, plan: Plan) -> float | None:
        """Return an upper bound of the delay of a sweep of ``plan``; None where the profile is not exact.

        By what sweeps of exactly this plan never exceeded where that was measured, else by the maxima.

        Raises:
            ProfileError: one of its kernels was not measured.
        """
        if not self.exact:
            return None
        limits = self.limits_of(plan)
        if limits is not None:
            return limits.bound_seconds(plan)
        return bound(plan.stages, self.durations(plan, "max"))

    def limits_of(self, plan: Plan) -> SweepLimits | None:
        """Return the limits of exactly this plan, where they were measured and hold here."""
        return self.limits.get(plan_key(plan)) if self.exact else None

    def with_limits(self, plan: Plan, limits: SweepLimits) -> "Profile":
        """Return this profile with the limits of ``plan``."""
        return self.model_copy(update={"limits": {**self.limits, plan_key(plan): limits}})

    @cached_property
    def _read_cache(self) -> dict[tuple[int, int, str], float]:
        return {}

    def _step_seconds(self, steps: Sequence[Step], quantile: Quantile) -> Iterator[float]:
        """Yield what each step takes."""
        regions = {region: self._phases(region, quantile) for region in regions_of(steps)}
        for step in steps:
            if isinstance(step, Phase):
                yield regions[step.region][step.number]
            else:
                yield self.kernel(piece_key(step)).at(quantile)

    def _phases(self, region: RegionSteps, quantile: Quantile) -> list[float]:
        """Return what each phase of a region takes; planners ask again and again."""
        key = (region.network, region.plan.region, quantile)
        seconds = self._phase_cache.get(key)
        if seconds is None:
            times = self.row_times(region.network, quantile)
            seconds = self._phase_cache[key] = phase_seconds(region.network, region.plan, times)
            while len(self._phase_cache) > _MOST_PHASES:
                self._phase_cache.pop(next(iter(self._phase_cache)), None)
        return seconds

    @cached_property
    def _phase_cache(self) -> dict[tuple[RowNetwork, Region, str], list[float]]:
        return {}

    def piece_seconds(self, program: Program) -> Callable[[int], float]:
        """Return what computes the usual seconds of finest pieces: a joined kernel's at its first chunk.

        Raises:
            ProfileError: the profile lacks a kernel.
        """
        pieces = choose_pieces(program, None)
        seconds = {
            positions.start: self.kernel(piece_key(piece)).median
            for piece, positions in zip(pieces, finest_positions(program, pieces), strict=True)
        }
        return lambda piece: seconds.get(piece, 0.0)

    def row_times(self, network: RowNetwork, quantile: Quantile = "median") -> MeasuredRows:
        """Return the times of row operators; raises as ``kernel`` when one is asked for."""

        def first(operator: int) -> float:
            known = self.kernels.get(first_key(operator))
            return 0.0 if known is None else known.at(quantile)

        return MeasuredRows(
            lambda key: self.phases * self.kernel(key).at(quantile),
            network,
            first,
            groups=lambda key: self.kernel(key).at(quantile),
        )

    def has_row_times(self, network: RowNetwork) -> bool:
        """Return whether all that regions of ``network`` do was measured."""
        return all(key in self.kernels for key in row_keys(network))

    def knows_groups(self, region: Region) -> bool:
        """Return whether a bottleneck was measured in these groups of channels."""
        return group_key(region) in self.kernels

    def groups_seconds(self, region: Region) -> float:
        """Return what a bottleneck that was measured in these groups of channels usually takes."""
        return self.kernel(group_key(region)).median

    def kernel(self, key: str) -> Distribution:
        """Return k of the kernel that ``key`` distinguishes.

        Raises:
            ProfileError: it was not measured.
        """
        try:
            return self.kernels[key]
        except KeyError:
            raise ProfileError(
                f"the profile has no time of kernel {key}: run `layerstream profile`"
            ) from None


def _together(kernels: Sequence[float], runs: Sequence[range], launch: float) -> list[float]:
    """Return the seconds of steps where the first of each run does the work of all."""
    seconds = list(kernels)
    for run in runs:
        took = sum(kernels[run.start : run.stop]) - launch * (len(run) - 1)
        seconds[run.start : run.stop] = [max(took, 0.0), *[0.0] * (len(run) - 1)]
    return seconds
