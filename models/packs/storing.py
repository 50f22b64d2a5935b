"""How weights are stored: each part of a span in an encoding, one behind the other in the file.

The account of the layout, and what expands it in NumPy; devices do the same faster, with the same bits
(pipeline/devices/expansion.py). Numbers are float32 in memory:

- "bytes": as they are.
- "float16", "bfloat16": half the bytes; every such number is one of float32.
- "int8": a float32 scale for each channel, then a byte for each number, which is times the scale.
- "planes": the first bytes of all numbers, then the second ones, and so on; each of the four planes as it
  is, or as one frame of Zstandard where that is shorter.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.errors import PackError
from models.packs.planes import MOST_OPENED_BYTES, OPENER_BYTES, opened_plane
from models.packs.records.pieces import TENSOR_ALIGNMENT
from models.packs.records.spans import Span, StoredPart

NUMBER_BYTES = 4
PLANES = 4
Bytes = NDArray[np.uint8]


def aligned(n_bytes: int) -> int:
    """Return ``n_bytes`` rounded up to where a part, or what is behind the scales, may begin."""
    return -(-n_bytes // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT


def scale_bytes(part: StoredPart) -> int:
    """Return the bytes before the numbers of an "int8" part."""
    return aligned(NUMBER_BYTES * part.channels)


def stored_bytes(part: StoredPart) -> int:
    """Return what ``part`` takes in the file."""
    numbers = part.length // NUMBER_BYTES
    match part.encoding:
        case "bytes":
            return part.length
        case "int8":
            return scale_bytes(part) + numbers
        case "planes":
            return sum(part.planes)
    return 2 * numbers


def places(parts: tuple[StoredPart, ...]) -> Iterator[tuple[StoredPart, int]]:
    """Yield each part with where it begins among the stored bytes of its span."""
    start = 0
    for part in parts:
        yield part, start
        start += aligned(stored_bytes(part))


def least_length(parts: tuple[StoredPart, ...]) -> int:
    """Return the bytes that ``parts`` take together."""
    return max((start + stored_bytes(part) for part, start in places(parts)), default=0)


def planes_of(part: StoredPart, source: Bytes) -> list[Bytes]:
    """Return the four planes of a "planes" part, those that are shorter in the file opened.

    Raises:
        ValueError: one is damaged.
    """
    count, start, found = part.length // NUMBER_BYTES, 0, []
    for length in part.planes:
        plane = source[start : start + length]
        found.append(plane if length == count else opened_plane(plane, count))
        start += length
    return found


def opened_bytes(spans: Iterable[Span]) -> int:
    """Return what planes of one of ``spans`` take while they are opened, at most."""
    found = (
        sum(
            part.length // NUMBER_BYTES
            for plane in part.planes
            if NUMBER_BYTES * plane < part.length
        )
        for span in spans
        if span.stored is not None
        for part in span.stored.parts
        if part.planes
    )
    largest = max(found, default=0)
    return largest and largest + OPENER_BYTES


def expand_part(part: StoredPart, source: Bytes, target: Bytes) -> None:
    """Write to ``target``, uint8 [part.length], what ``source``, its stored bytes, stands for.

    Raises:
        ValueError: they are damaged.
    """
    match part.encoding:
        case "bytes":
            target[:] = source
        case "float16":
            target.view(np.float32)[:] = source.view(np.float16)
        case "bfloat16":
            np.left_shift(source.view(np.uint16), 16, out=target.view(np.uint32), dtype=np.uint32)
        case "int8":
            start = scale_bytes(part)
            shape = (part.channels // part.block, -1, part.block)
            scales = source[: NUMBER_BYTES * part.channels].view(np.float32)
            numbers = source[start:].view(np.int8).reshape(shape)
            np.multiply(
                numbers,
                scales.reshape(-1, 1, part.block),
                out=target.view(np.float32).reshape(numbers.shape),
                dtype=np.float32,
            )
        case "planes":
            for number, plane in enumerate(planes_of(part, source)):
                target[number::PLANES] = plane


def expand_span(span: Span, source: Bytes, target: Bytes) -> None:
    """Write to ``target``, uint8 [span.length], what ``source``, all stored bytes of ``span``, stand for.

    Bytes that belong to no part are zero.

    Raises:
        ValueError: they are damaged.
    """
    if span.stored is None:
        target[:] = source
        return
    end = 0
    for part, start in places(span.stored.parts):
        target[end : part.offset] = 0
        end = part.offset + part.length
        expand_part(part, source[start : start + stored_bytes(part)], target[part.offset : end])
    target[end:] = 0


def read_span(weights: Path, span: Span) -> Bytes:
    """Return the bytes that ``span`` has in memory, read from the file ``weights``; nothing is verified.

    Raises:
        OSError: no access. PackError: the file ends early, or what it has cannot be expanded.
    """
    with weights.open("rb") as file:
        file.seek(span.file_offset)
        source = np.frombuffer(file.read(span.file_length), np.uint8)
    target = np.empty(span.length, np.uint8)
    try:
        expand_span(span, source, target)
    except ValueError as exc:
        raise PackError(f"{weights}: bytes from {span.file_offset} on: {exc}") from exc
    return target


def part_fault(part: StoredPart) -> str:
    """Return why ``part`` cannot be; empty where it can."""
    numbers, rest = divmod(part.length, NUMBER_BYTES)
    if part.encoding == "bytes":
        return ""
    if rest or part.offset % NUMBER_BYTES:
        return f"[{part.offset}, +{part.length}) are no float32 numbers"
    if part.encoding == "int8":
        return _channel_fault(part, numbers)
    if part.encoding == "planes":
        return _plane_fault(part, numbers)
    return ""


def _plane_fault(part: StoredPart, numbers: int) -> str:
    planes = list(part.planes)
    if len(planes) != PLANES or max(planes) > numbers:
        return f"planes: {planes} are not {PLANES} of at most {numbers} bytes"
    if min(planes) * MOST_OPENED_BYTES < numbers:
        return f"planes: no frame of {min(planes)} bytes holds {numbers}"
    return ""


def _channel_fault(part: StoredPart, numbers: int) -> str:
    if not part.channels or part.channels % part.block:
        return f"channels: {part.channels} are not whole blocks of {part.block}"
    if numbers % part.channels:
        return f"channels: {numbers} numbers are not divided by {part.channels}"
    return ""
