"""Expanding stored weights where they are used: by the native library, or in NumPy, with the same bits.

models/packs/storing.py has the account of how they are stored.
"""

from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from models.packs.records.spans import Encoding, Span, StoredPart
from models.packs.storing import (
    Bytes,
    expand_span,
    places,
    planes_of,
    scale_bytes,
    stored_bytes,
)
from pipeline.devices.elementwise.library import Library, LibraryError, Stretch, find_library
from pipeline.devices.memory import address

# The order of `enum encoding` in elementwise/kernels/expansion.h; bytes of no part are zero.
_ZERO = 0
_NUMBERS: dict[Encoding, int] = {name: n for n, name in enumerate(get_args(Encoding), 1)}


class Expansion:
    """What a copy makes of spans that the disk has brought, one behind the other. One run at a time.

    ``source_bytes`` become ``target_bytes``. ``library``: what does it; None: NumPy.
    """

    def __init__(
        self, spans: Sequence[Span], library: Library | LibraryError | None = None
    ) -> None:
        self._spans = tuple(spans)
        self.source_bytes = sum(span.file_length for span in spans)
        self.target_bytes = sum(span.length for span in spans)
        library = find_library() if library is None else library
        self._library = library if isinstance(library, Library) else None
        self._calls = list(_calls(self._spans))

    def run(self, source: memoryview, target: memoryview) -> None:
        """Write to ``target`` what ``source`` stands for.

        Raises:
            ValueError: they have other lengths, or the source is damaged.
        """
        if (source.nbytes, target.nbytes) != (self.source_bytes, self.target_bytes):
            raise ValueError(
                f"{source.nbytes} bytes for {target.nbytes}, not "
                f"{self.source_bytes} for {self.target_bytes}"
            )
        brought, made = np.frombuffer(source, np.uint8), np.frombuffer(target, np.uint8)
        if self._library is None:
            self._in_numpy(brought, made)
            return
        for call in self._calls:
            held = [call.found_planes(brought, *item) for item in call.planes]
            self._library.expand(call.stretches, address(source), address(target))
            del held

    def _in_numpy(self, source: Bytes, target: Bytes) -> None:
        start = end = 0
        for span in self._spans:
            expand_span(
                span,
                source[start : start + span.file_length],
                target[end : end + span.length],
            )
            start, end = start + span.file_length, end + span.length


class _Call:
    """Stretches that the library expands at once."""

    def __init__(self, made: Sequence["_Made"]) -> None:
        self.stretches = (Stretch * len(made))(*(stretch for stretch, _, _ in made))
        #: Parts whose planes are found when they have come: number of the stretch, part, its place.
        self.planes = [
            (number, part, start)
            for number, (_, part, start) in enumerate(made)
            if part is not None and part.encoding == "planes"
        ]

    def found_planes(self, source: Bytes, number: int, part: StoredPart, start: int) -> list[Bytes]:
        """Tell the stretch ``number`` where its planes are; they are there as long as they are held."""
        planes = planes_of(part, source[start : start + stored_bytes(part)])
        for place, plane in enumerate(planes):
            self.stretches[number].planes[place] = plane.ctypes.data
        return planes


def expansion_of(spans: Sequence[Span]) -> Expansion | None:
    """Return what expands ``spans``; None: they are stored as they are used."""
    return Expansion(spans) if any(span.stored is not None for span in spans) else None


#: A stretch, with the part that it is, if any, and where that is stored.
_Made = tuple[Stretch, StoredPart | None, int]


def _calls(spans: Sequence[Span]) -> Iterator[_Call]:
    """Yield the calls that expand ``spans``.

    A span with planes ends one: those of one span are open at a time, which is what plans count.
    """
    made: list[_Made] = []
    for own in _stretches(spans):
        made += own
        if any(part is not None and part.encoding == "planes" for _, part, _ in own):
            yield _Call(made)
            made = []
    if made:
        yield _Call(made)


def _stretches(spans: Sequence[Span]) -> Iterator[list[_Made]]:
    """Yield the stretches of each of ``spans``."""
    source = target = 0
    for span in spans:
        made: list[_Made] = []
        end = target
        parts = _whole(span) if span.stored is None else span.stored.parts
        for part, start in places(parts):
            if target + part.offset > end:
                zero = Stretch(_ZERO, to=end, length=target + part.offset - end)
                made.append((zero, None, 0))
            made.append((_stretch(part, source + start, target), part, source + start))
            end = target + part.offset + part.length
        source, target = source + span.file_length, target + span.length
        if end < target:
            made.append((Stretch(_ZERO, to=end, length=target - end), None, 0))
        yield made


def _whole(span: Span) -> tuple[StoredPart]:
    return (StoredPart(encoding="bytes", offset=0, length=span.length),)


def _stretch(part: StoredPart, start: int, target: int) -> Stretch:
    return Stretch(
        encoding=_NUMBERS[part.encoding],
        block=part.block,
        channels=max(part.channels, 1),
        to=target + part.offset,
        length=part.length,
        start=start + (scale_bytes(part) if part.encoding == "int8" else 0),
        scales=start,
    )
