"""The variants of a model on rows, judged by its profile, or by its arithmetic where it has none."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from math import inf

from pipeline.planning.make import chunk_limit, reads_into_arena
from pipeline.planning.plan import Plan
from pipeline.planning.rows.region_edges import group_regions
from pipeline.planning.rows.variants import Variant, Variants, find_variants
from pipeline.planning.rows.walk import QUICK, Effort
from pipeline.profiles.profile import Profile
from pipeline.program.choice import choose_pieces, finest_positions
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.region_plan import Action, Compute, RegionPlan
from pipeline.program.row_network import RowNetwork
from pipeline.program.steps import regions_of, row_network
from pipeline.program.work import (
    BYTES_A_SECOND,
    MULTIPLICATIONS_A_SECOND,
    computing_seconds,
    phase_seconds,
)
from pipeline.schedule.architectures import Architecture
from pipeline.timing.durations import Durations
from pipeline.timing.timeline import timeline

# Rough times of a core that was not measured (work.py), and of reads: only their proportions decide.

_LAUNCH_SECONDS = 4e-6
_COPY_SECONDS = 2e-6
#: How many such cores compute as fast as a usual server's two threads with AVX-512.
_CORES = 4
#: What a launch, or a phase of rows, takes beside its kernels: Python, and a pool of threads to wake.
_WAKE_SECONDS = 20e-6
#: Weights that a row operator went through a moment ago.
_CACHED_BYTES_A_SECOND = 30e9
#: What a disk reads.
READ_BYTES_A_SECOND = 1.5e9
#: What a read takes beside its bytes, where a kernel waits for it.
_READ_SECONDS = 100e-6


def piece_seconds(program: Program) -> tuple[float, ...]:
    """Return about how long each of the finest pieces takes; made once."""
    return program.made(_piece_seconds)


def _piece_seconds(program: Program) -> tuple[float, ...]:
    return tuple(map(_seconds, program.pieces))


def _seconds(piece: PreparedPiece) -> float:
    return _LAUNCH_SECONDS + computing_seconds(piece)


# Variants, by a profile or by these times.


def row_variants(
    program: Program,
    architecture: Architecture,
    profile: Profile | None,
    most: Effort = QUICK,
    most_arena: int | None = None,
) -> Variants:
    """Return the variants that plans of ``architecture`` may choose, the whole network first.

    ``most_arena``: the fastest and smallest of those that need so many bytes of an arena at most.
    The whole network is the only variant where the profile has no times of rows: what they take is unknown.
    Kept with ``program``.

    Raises:
        ProfileError: the profile lacks a kernel.
    """
    unknown = profile is not None and not profile.has_row_times(row_network(program))
    if architecture.tuned != "auto" or unknown:
        return _WHOLE
    into_arena = reads_into_arena(program, architecture)
    return program.made(_searches)(profile, most, most_arena, into_arena)


_WHOLE = Variants((Variant((), 0, 0.0),))
_Search = Callable[[Profile | None, Effort, int | None, bool], Variants]
# Answers that are kept: small beside what is searched among.
_MOST_FOUND = 16


def _searches(program: Program) -> _Search:
    """Return what searches for variants of ``program``, and keeps the last that were found."""
    return lru_cache(maxsize=_MOST_FOUND)(partial(_search, program))


def _search(
    program: Program,
    profile: Profile | None,
    most: Effort,
    most_arena: int | None,
    into_arena: bool,
) -> Variants:
    network = row_network(program)
    search = partial(
        find_variants,
        network,
        most=most,
        most_arena=most_arena,
        into_arena=into_arena,
    )
    regions = group_regions(program)
    if profile is None:
        estimated = _Estimated(network)
        slow = dict.fromkeys(regions, inf)
        variants = search(estimated, estimated.pieces(), in_groups=slow, slower=True)
    else:
        times, seconds = profile.row_times(network), profile.piece_seconds(program)
        known = {
            region: profile.groups_seconds(region)
            for region in regions
            if profile.knows_groups(region)
        }
        variants = search(times, seconds, in_groups=known)
    # A network without activations of known size has no ways, and nothing to put on rows.
    return variants if variants.found else _WHOLE


@dataclass(frozen=True)
class _Estimated:
    """Times by multiplications and bytes."""

    network: RowNetwork

    def call(self, operator: int, rows: int) -> float:
        """Return what row operator ``operator`` takes for ``rows`` rows of its output."""
        item = self.network.operators[operator]
        output = self.network.values[item.output]
        weights = max((operand.n_bytes for operand in item.weights), default=0) // 4
        work = rows * output.shape[3] * max(weights, output.shape[1])
        return _LAUNCH_SECONDS + work / MULTIPLICATIONS_A_SECOND

    def first(self, operator: int) -> float:
        """Nothing: what is in the caches is unknown."""
        return 0.0

    def move(self, n_bytes: int) -> float:
        """Return what copying ``n_bytes`` in all takes."""
        return _COPY_SECONDS + n_bytes / BYTES_A_SECOND

    def bottleneck(self, plan: RegionPlan) -> float:
        """Return what all of a bottleneck in groups of channels takes."""
        # Of those that are alike all are one object.
        each = {id(action): action for phase in plan.phases for action in phase}
        seconds = {number: self._action(action) for number, action in each.items()}
        return sum(seconds[id(action)] for phase in plan.phases for action in phase)

    def _action(self, action: Action) -> float:
        if not isinstance(action, Compute):
            return _COPY_SECONDS
        _, channels, *pixels = action.output.shape
        shapes = [place.shape for place in action.inputs]
        # Of weights, which come second, each is multiplied for each pixel.
        weights = math.prod(shapes[1]) if len(shapes) > 1 else 0
        work = math.prod(pixels) * max(weights, channels)
        return _LAUNCH_SECONDS + work / MULTIPLICATIONS_A_SECOND

    def pieces(self) -> Callable[[int], float]:
        """Return what tells the seconds of pieces: each operator's at the first of its own."""
        seconds: dict[int, float] = {}
        for number, item in enumerate(self.network.operators):
            height = self.network.values[item.output].height
            took = seconds.get(item.first_piece, 0.0)
            seconds[item.first_piece] = took + self.call(number, height)
        return lambda piece: seconds.get(piece, 0.0)


@dataclass(frozen=True)
class _Called(_Estimated):
    """Times of rows as those of whole pieces: with what they touch, and weights for each call again."""

    def call(self, operator: int, rows: int) -> float:
        """Return what row operator ``operator`` takes for ``rows`` rows of its output."""
        item = self.network.operators[operator]
        output = self.network.values[item.output]
        part = rows / output.height
        values = [output, *(self.network.values[taken.row_value] for taken in item.inputs)]
        touched = part * sum(value.n_bytes for value in values)
        weights = sum(operand.n_bytes for operand in item.weights)
        work = super().call(operator, rows) - _LAUNCH_SECONDS + touched / BYTES_A_SECOND
        return _LAUNCH_SECONDS + work / _CORES + weights / _CACHED_BYTES_A_SECOND


def estimated_seconds(program: Program, plan: Plan) -> float:
    """Return about what a sweep of ``plan`` takes, by arithmetic alone: its schedule with estimated times.

    Small steps count as they are: each launch, each copy, each read that kernels wait for in a small ring,
    the weights that a row operator goes through again.
    """
    depth = plan.choice.depth  # reads in flight share the disk
    reads = [
        _READ_SECONDS + depth * group.read_bytes / READ_BYTES_A_SECOND for group in plan.groups
    ]
    times = [tuple(reads[index % len(reads)] for index in range(len(plan.stages[0])))]
    if plan.architecture.copies:
        times.append(tuple(group.length / BYTES_A_SECOND for group in plan.groups))
    times.append(tuple(_step_seconds(program, plan)))
    durations = Durations(tuple(times), depth)
    return timeline(plan.stages, durations, plan.stages[0].ahead).delay_seconds


def _step_seconds(program: Program, plan: Plan) -> Iterator[float]:
    """Yield about what each step takes; the first of a launch takes the launch."""
    network = row_network(program)
    times = _Called(network)
    phases = (
        seconds
        for region in regions_of(plan.steps)
        for seconds in phase_seconds(network, region.plan, times)
    )
    finest = piece_seconds(program)
    inside = {piece for region in plan.choice.regions for piece in region.pieces}
    limit = chunk_limit(program, plan.architecture, plan.choice)
    chosen = choose_pieces(program, limit, plan.choice.later_chunks)
    whole = (each for each in finest_positions(program, chosen) if each.start not in inside)
    joined = {position for run in plan.runs for position in run[1:]}
    for position, step in enumerate(plan.steps):
        if isinstance(step, PreparedPiece):
            work = sum(finest[piece] - _LAUNCH_SECONDS for piece in next(whole))
            yield work / _CORES + (_LAUNCH_SECONDS if position in joined else _WAKE_SECONDS)
        else:
            yield _WAKE_SECONDS + next(phases)
