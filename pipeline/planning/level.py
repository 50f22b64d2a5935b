"""The kernels of one chunk size, their weights and their times: what drafts of plans share."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from models.packs.manifest import Manifest
from pipeline.planning.plan import Plan
from pipeline.timing.durations import Durations


@dataclass(frozen=True)
class Unit:
    """The streamed weights of kernel ``piece``: spans [first, end), bytes [offset, offset + length)."""

    piece: int
    first: int
    end: int
    offset: int
    length: int

    @property
    def spans(self) -> range:
        return range(self.first, self.end)


@dataclass(frozen=True)
class Level:
    """The kernels of one chunk size. ``kept_bytes``: what is resident whatever is chosen.

    ``until[p]``: seconds of kernels [0, p).
    """

    plan: Plan
    units: tuple[Unit, ...]
    kept_bytes: int
    until: tuple[float, ...]
    slowdown: float
    disturbance: float

    @cached_property
    def streamable_bytes(self) -> int:
        return sum(unit.length for unit in self.units)

    @cached_property
    def largest_bytes(self) -> int:
        return max((unit.length for unit in self.units), default=0)


def level_of(manifest: Manifest, plan: Plan, durations: Durations) -> Level:
    """Return the level of ``plan``, which keeps no more resident than it must."""
    spans = manifest.spans
    units = []
    for index, piece in enumerate(plan.pieces):
        own = range(0) if piece.span is None else range(piece.span, piece.span + piece.n_spans)
        if own and not all(spans[i].resident for i in own):
            length = sum(spans[i].length for i in own)
            units.append(Unit(index, own.start, own.stop, spans[own.start].offset, length))
    return Level(
        plan,
        tuple(units),
        plan.resident_bytes,
        tuple(accumulate(durations.stages[-1], initial=0.0)),
        durations.slowdown,
        durations.disturbance,
    )
