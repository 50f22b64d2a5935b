"""The problem of offsets: buffers that live for some steps get bytes of one arena, and what a solution is.

Everything here is a fact; nothing decides. Lives are half-open, all sizes and offsets are bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass


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
