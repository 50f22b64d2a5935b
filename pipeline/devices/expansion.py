"""Expanding stored weights where they are used: by the native library, or in NumPy, with the same bits.

models/packs/storing.py has the account of how they are stored.
"""

from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np

from loader.native.compiling import LibraryError
from models.packs.records.spans import Encoding, Span, StoredPart
from models.packs.storing import (
    Bytes,
    expand_span,
    places,
    scale_bytes,
)
from pipeline.devices.device_memory import address
from pipeline.devices.elementwise.library import Library, StretchStruct, find_library

# The order of `enum encoding`; bytes of no part are zero.
_ZERO = 0
_NUMBERS: dict[Encoding, int] = {name: n for n, name in enumerate(get_args(Encoding), 1)}


class Expansion:
    """Expands the spans that were read, one behind the other, as they are copied. One run at a time.

    ``source_bytes`` become ``target_bytes``. ``library``: the native one; None: NumPy.
    """

    def __init__(
        self, spans: Sequence[Span], library: Library | LibraryError | None = None
    ) -> None:
        self._spans = tuple(spans)
        self.source_bytes = sum(span.file_length for span in spans)
        self.target_bytes = sum(span.length for span in spans)
        library = find_library() if library is None else library
        self._library = library if isinstance(library, Library) else None
        stretches = list(_stretches(self._spans))
        self._stretches = (StretchStruct * len(stretches))(*stretches)

    def run(self, source: memoryview, target: memoryview) -> None:
        """Write to ``target`` what ``source`` stands for.

        Raises:
            ValueError: they have other lengths.
        """
        if (source.nbytes, target.nbytes) != (self.source_bytes, self.target_bytes):
            raise ValueError(
                f"{source.nbytes} bytes for {target.nbytes}, not "
                f"{self.source_bytes} for {self.target_bytes}"
            )
        if self._library is None:
            self._in_numpy(np.frombuffer(source, np.uint8), np.frombuffer(target, np.uint8))
        else:
            self._library.expand(self._stretches, address(source), address(target))

    def _in_numpy(self, source: Bytes, target: Bytes) -> None:
        start = end = 0
        for span in self._spans:
            expand_span(
                span,
                source[start : start + span.file_length],
                target[end : end + span.length],
            )
            start, end = start + span.file_length, end + span.length


def expansion_of(spans: Sequence[Span]) -> Expansion | None:
    """Return what expands ``spans``; None: they are stored as they are used."""
    return Expansion(spans) if any(span.stored is not None for span in spans) else None


def _stretches(spans: Sequence[Span]) -> Iterator[StretchStruct]:
    """Yield the stretches of ``spans``, one behind the other."""
    source = end = target = 0
    for span in spans:
        parts = _whole(span) if span.stored is None else span.stored.parts
        for part, start in places(parts):
            if target + part.offset > end:
                yield StretchStruct(_ZERO, to=end, length=target + part.offset - end)
            yield _stretch(part, source + start, target)
            end = target + part.offset + part.length
        source, target = source + span.file_length, target + span.length
        if end < target:
            yield StretchStruct(_ZERO, to=end, length=target - end)
            end = target


def _whole(span: Span) -> tuple[StoredPart]:
    return (StoredPart(encoding="bytes", offset=0, length=span.length),)


def _stretch(part: StoredPart, start: int, target: int) -> StretchStruct:
    return StretchStruct(
        encoding=_NUMBERS[part.encoding],
        block=part.block,
        channels=max(part.channels, 1),
        to=target + part.offset,
        length=part.length,
        start=start + (scale_bytes(part) if part.encoding == "int8" else 0),
        scales=start,
        kept=part.kept,
        exceptions=tuple(plane.exceptions for plane in part.planes),
        bits=tuple(plane.bits for plane in part.planes),
    )
