"""Where each read group lies in the ring, decided once for all sweeps.

Groups are placed one after the other; one that does not fit before the end starts again at 0, and the
rest stays a gap. Because places are known beforehand, "is there room?" (seed 003, Eq. 3, target
buffer constraint) becomes a number: how many groups must have been used up first.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from loader.errors import LoaderError


@dataclass(frozen=True, slots=True)
class ReadGroup:
    """Positions [first_span, end_span) in the list of streamed spans, which one read brings.

    ``length``: what they take in memory. ``stored_length``: what the disk brings; None: the same.
    """

    first_span: int
    end_span: int
    length: int
    stored_length: int | None = None

    @property
    def read_bytes(self) -> int:
        """What the disk brings."""
        return self.length if self.stored_length is None else self.stored_length


@dataclass(frozen=True, slots=True)
class RingPlace:
    """A group's bytes [offset, offset + length) of the ring, free once groups [0, after) are used up."""

    offset: int
    length: int
    after: int


def group_spans(
    spans: Sequence[tuple[int, int]],
    read_bytes: int,
    alone: Collection[int] = (),
    stored: Sequence[int] | None = None,
) -> list[ReadGroup]:
    """Join spans (offset, length in memory) that follow each other to reads.

    A read has at most ``read_bytes`` in memory; a longer span is a read of its own, and so are those
    ``alone``. ``stored``: what each takes in the file; None: the same.
    """
    groups: list[ReadGroup] = []
    end_offset = None
    for number, (offset, length) in enumerate(spans):
        brought = None if stored is None else stored[number]
        last = None if number in alone or not groups else groups[-1]
        if last is not None and offset == end_offset and last.length + length <= read_bytes:
            both = None if brought is None else last.read_bytes + brought
            groups[-1] = ReadGroup(last.first_span, number + 1, last.length + length, both)
        else:
            groups.append(ReadGroup(number, number + 1, length, brought))
        end_offset = None if number in alone else offset + length
    return groups


def place(
    groups: Sequence[ReadGroup], ring_bytes: int, elsewhere: Collection[int] = ()
) -> list[RingPlace | None]:
    """Return the place of each group; None of those ``elsewhere``, by number: other memory holds them.

    Raises:
        LoaderError: a group is larger than the ring.
    """
    places: list[RingPlace | None] = []
    position = 0
    for number, group in enumerate(groups):
        if number in elsewhere:
            places.append(None)
            continue
        if group.length > ring_bytes:
            raise LoaderError(
                f"a ring of {ring_bytes} bytes cannot hold a read of {group.length} bytes"
            )
        if position + group.length > ring_bytes:
            position = 0
        end = position + group.length
        after = _used_up(places, position, end)
        places.append(RingPlace(position, group.length, after))
        position = end
    return places


def place_in_slots(groups: Sequence[ReadGroup], slot_bytes: int, slots: int) -> list[RingPlace]:
    """Return the place of each group where the buffer is ``slots`` places of ``slot_bytes``, in turns.

    Raises:
        LoaderError: a group is larger than a slot.
    """
    for group in groups:
        if group.length > slot_bytes:
            raise LoaderError(
                f"a slot of {slot_bytes} bytes cannot hold a read of {group.length} bytes"
            )
    return [
        RingPlace(number % slots * slot_bytes, group.length, max(number - slots + 1, 0))
        for number, group in enumerate(groups)
    ]


def place_ahead(places: Sequence[RingPlace | None]) -> list[RingPlace]:
    """Return places for the first groups of the next sweep, as many as fit before the ring wraps.

    What lies elsewhere is not read before its sweep, nor is what comes after it. They are the places of
    this sweep, so each is free once the last group that lies there is used up.
    """
    head = []
    for item in places:
        if item is None or item.after:
            break
        head.append(
            RingPlace(
                item.offset, item.length, _used_up(places, item.offset, item.offset + item.length)
            )
        )
    return head


def _used_up(places: Sequence[RingPlace | None], start: int, end: int) -> int:
    """Return how many groups must be used up before bytes [start, end) are free.

    Groups are used up in order: the latest one in the way comes after all others.
    """
    for number in range(len(places) - 1, -1, -1):
        item = places[number]
        if item is not None and item.offset < end and start < item.offset + item.length:
            return number + 1
    return 0
