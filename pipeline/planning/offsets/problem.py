"""The problem of offsets: buffers that live for some steps get bytes of one arena; what a solution is.

Everything here is a fact; nothing decides. Lives are half-open, all sizes and offsets are bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import gcd
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray


class OffsetsError(Exception):
    """The pins of a problem contradict each other."""


@dataclass(frozen=True, slots=True)
class LiveBuffer:
    """``n_bytes`` that are kept during steps [start, end), at a multiple of ``alignment``.

    ``pin``: the offset that it must have. A buffer without bytes or without steps takes no room.

    Raises:
        ValueError: a negative number, an alignment below 1, a pin that is not aligned.
    """

    n_bytes: int
    start: int
    end: int
    alignment: int = 1
    pin: int | None = None

    def __post_init__(self) -> None:
        if self.n_bytes < 0:
            raise ValueError(f"a buffer of {self.n_bytes} bytes")
        if self.alignment < 1:
            raise ValueError(f"an alignment of {self.alignment} bytes")
        if self.pin is not None and (self.pin < 0 or self.pin % self.alignment):
            raise ValueError(f"a pin at {self.pin} with an alignment of {self.alignment}")

    @property
    def takes_room(self) -> bool:
        return self.n_bytes > 0 and self.start < self.end

    @property
    def padded_bytes(self) -> int:
        """The room that it takes: its bytes, rounded up to its alignment."""
        return -(-self.n_bytes // self.alignment) * self.alignment

    def meets(self, other: "LiveBuffer") -> bool:
        """Return whether both live in some step."""
        return max(self.start, other.start) < min(self.end, other.end)


@dataclass(frozen=True)
class Problem:
    """Place ``buffers`` in as few bytes as possible; with a ``capacity``, any that fit in it will do.

    Raises:
        OffsetsError: two pins overlap while both buffers live.
    """

    buffers: tuple[LiveBuffer, ...]
    capacity: int | None = None

    def __post_init__(self) -> None:
        pinned = [(i, b) for i, b in enumerate(self.buffers) if b.pin is not None and b.takes_room]
        for i, one in pinned:
            for j, other in pinned[: pinned.index((i, one))]:
                if one.meets(other) and overlaps(one, one.pin or 0, other, other.pin or 0):
                    raise OffsetsError(f"buffers {j} and {i} are pinned to the same bytes")


@dataclass(frozen=True)
class Placement:
    """``offsets[i]`` is where buffer i lies; the arena has ``n_bytes``, and none has less than the bound.

    ``optimal``: proven, as no arena of fewer bytes exists. ``method``: what found it.
    """

    offsets: tuple[int, ...]
    n_bytes: int
    lower_bound_bytes: int
    method: str

    @property
    def optimal(self) -> bool:
        return self.n_bytes == self.lower_bound_bytes


def overlaps(one: LiveBuffer, at: int, other: LiveBuffer, other_at: int) -> bool:
    """Return whether two places share a byte."""
    return max(at, other_at) < min(at + one.padded_bytes, other_at + other.padded_bytes)


def arena_bytes(buffers: Sequence[LiveBuffer], offsets: Sequence[int]) -> int:
    """Return where the last buffer ends."""
    ends = (o + b.padded_bytes for b, o in zip(buffers, offsets, strict=True) if b.takes_room)
    return max(ends, default=0)


def components(buffers: Sequence[LiveBuffer]) -> list[list[int]]:
    """Return the indices of buffers that take room, in parts between which nothing lives on."""
    order = sorted(
        (i for i, b in enumerate(buffers) if b.takes_room), key=lambda i: buffers[i].start
    )
    parts: list[list[int]] = []
    end = 0
    for index in order:
        if not parts or buffers[index].start >= end:
            parts.append([])
        parts[-1].append(index)
        end = max(end, buffers[index].end) if len(parts[-1]) > 1 else buffers[index].end
    return parts


def violations(problem: Problem, placement: Placement) -> list[str]:
    """Return what is wrong with any pair, alignment, pin or end. Empty: the placement is valid."""
    messages = []
    if len(placement.offsets) != len(problem.buffers):
        return [f"{len(placement.offsets)} offsets for {len(problem.buffers)} buffers"]
    placed = list(zip(problem.buffers, placement.offsets, strict=True))
    for i, (buffer, at) in enumerate(placed):
        if at < 0 or at % buffer.alignment:
            messages.append(f"buffer {i} lies at {at}")
        if buffer.pin is not None and buffer.pin != at:
            messages.append(f"buffer {i} lies at {at}, its pin is {buffer.pin}")
        if _lives(buffer) and at + _room(buffer) > placement.n_bytes:
            messages.append(f"buffer {i} ends beyond the arena")
        for j, (other, other_at) in enumerate(placed[:i]):
            together = buffer.start < other.end and other.start < buffer.end
            apart = at + _room(buffer) <= other_at or other_at + _room(other) <= at
            if _lives(buffer) and _lives(other) and together and not apart:
                messages.append(f"buffers {j} and {i} overlap")
    return messages


def _lives(buffer: LiveBuffer) -> bool:
    return buffer.n_bytes > 0 and buffer.end > buffer.start


def _room(buffer: LiveBuffer) -> int:
    return buffer.n_bytes + -buffer.n_bytes % buffer.alignment


# A part of a problem as the search sees it: arrays of whole units over sections of time.
#
# A section stands for steps in which the same buffers live; one whose buffers all live in a neighbour too
# says nothing of its own and is left out, so what remains are the largest sets of buffers that meet.

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

FAR = 1 << 60  # beyond every offset


@dataclass(frozen=True, eq=False)
class Sections:
    """Buffers 0..n-1 by start, sections 0..m-1 in order of time; sizes and offsets in ``unit`` bytes.

    ``indices[i]``: buffer i in the sequence given. It lives in sections [first[i], end[i]).
    ``members`` holds the buffers of each section one after the other, those of section s from ``begin[s]``
    on; ``section_of`` says for each entry whose it is. ``meets[i, j]``: both live in some section.
    """

    unit: int
    indices: tuple[int, ...]
    first: Ints
    end: Ints
    size: Ints
    alignment: Ints
    pin: Ints
    members: Ints
    begin: Ints
    section_of: Ints
    ranges: Ints
    meets: Bools
    load: Ints

    @property
    def n_buffers(self) -> int:
        return len(self.size)

    @cached_property
    def pinned(self) -> Ints:
        return (self.pin >= 0).nonzero()[0]

    @cached_property
    def distance(self) -> Ints:
        """0 for buffers that meet, FAR for others."""
        return np.where(self.meets, 0, FAR)

    @cached_property
    def alike(self) -> Bools:
        """Which buffers could be exchanged; each is like itself."""
        own = np.where(self.pin < 0, -1, np.arange(self.n_buffers))
        same = np.ones((self.n_buffers, self.n_buffers), bool)
        for trait in (self.first, self.end, self.size, self.alignment, own):
            same &= trait[:, None] == trait
        return same

    @cached_property
    def _aligned(self) -> bool:
        return bool((self.alignment == 1).all())

    def round_up(self, offsets: Ints) -> Ints:
        """Return for each buffer its lowest aligned offset from the one given on; FAR stays."""
        if self._aligned:
            return offsets
        return np.where(offsets < FAR, -(-offsets // self.alignment) * self.alignment, FAR)

    def bytes_of(self, offsets: Ints) -> list[int]:
        """Return offsets in bytes in the order of the sequence given."""
        in_bytes = [0] * self.n_buffers
        for index, offset in zip(self.indices, offsets.tolist(), strict=True):
            in_bytes[index] = offset * self.unit
        return in_bytes

    def of(self, section: int) -> slice:
        """Return where the members of a section lie."""
        last = section + 1 == len(self.begin)
        return slice(self.begin[section], None if last else self.begin[section + 1])


def unit_bytes(buffers: Sequence[LiveBuffer]) -> int:
    """Return the largest unit of which all sizes, pins and alignments that matter are multiples.

    Every buffer of a placement can be pushed down until it rests on another one, a pin or the ground, so
    offsets are sums of sizes and pins where alignments divide them.
    """
    sizes = gcd(*(b.padded_bytes for b in buffers), *(b.pin or 0 for b in buffers))
    if all(sizes % b.alignment == 0 for b in buffers):
        return sizes
    return gcd(sizes, *(b.alignment for b in buffers))


def divide(buffers: Sequence[LiveBuffer]) -> Sections:
    """Return the sections of buffers that all take room."""
    unit = unit_bytes(buffers)
    order = sorted(range(len(buffers)), key=lambda i: (buffers[i].start, buffers[i].end, i))
    chosen = [buffers[i] for i in order]
    start, stop = (np.array([getattr(b, name) for b in chosen]) for name in ("start", "end"))
    times = _peaks(chosen)
    lives = [(start <= time) & (time < stop) for time in times]
    inside = np.array(lives)
    first = inside.argmax(axis=0).astype(np.int64)
    end = first + inside.sum(axis=0)
    section_of, members = inside.nonzero()
    meets = (first[:, None] < end) & (first < end[:, None])
    np.fill_diagonal(meets, False)
    size = np.array([b.padded_bytes // unit for b in chosen])
    alignment = np.array([max(1, b.alignment // gcd(unit, b.alignment)) for b in chosen])
    pin = np.array([-1 if b.pin is None else b.pin // unit for b in chosen])
    return Sections(
        unit=unit,
        indices=tuple(order),
        first=first,
        end=end,
        size=size,
        alignment=alignment,
        pin=pin,
        members=members,
        begin=np.searchsorted(section_of, np.arange(len(times))),
        section_of=section_of,
        ranges=np.stack((first, end), axis=1).ravel(),
        meets=meets,
        load=inside @ size,
    )


def _peaks(buffers: Sequence[LiveBuffer]) -> list[int]:
    """Return the steps after which something ends before anything else starts."""
    events = sorted({(b.start, 1) for b in buffers} | {(b.end, 0) for b in buffers})
    return [
        time for (time, starts), (_, next_starts) in pairwise(events) if starts and not next_starts
    ]
