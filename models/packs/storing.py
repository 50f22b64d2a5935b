"""How weights are stored: each part of a span in an encoding, one behind the other in the file.

The account of the layout, and what expands it in NumPy; devices do the same faster, with the same bits
(pipeline/devices/expansion.py). Numbers are float32 in memory:

- "bytes": as they are.
- "float16", "bfloat16": half the bytes; every such number is one of float32.
- "int8": a float32 scale for each channel, then a byte for each number, which is times the scale.
- "planes": without loss, each of their four bytes in as few bits as it takes (models/packs/planes.py).
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.errors import PackError
from models.packs.planes import open_planes, planes_bytes, planes_fault
from models.packs.records.pieces import TENSOR_ALIGNMENT
from models.packs.records.spans import Span, StoredPart

NUMBER_BYTES = 4
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
            return planes_bytes(numbers, part.kept, part.planes)
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


def expand_part(part: StoredPart, source: Bytes, target: Bytes) -> None:
    """Write to ``target``, uint8 [part.length], what ``source``, its stored bytes, stands for."""
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
            open_planes(source, part.planes, part.kept, target)


def expand_span(span: Span, source: Bytes, target: Bytes) -> None:
    """Write to ``target``, uint8 [span.length], what ``source``, all stored bytes of ``span``, stand for.

    Bytes that belong to no part are zero.
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
        OSError: no access. PackError: the file ends early.
    """
    with weights.open("rb") as file:
        file.seek(span.file_offset)
        source = np.frombuffer(file.read(span.file_length), np.uint8)
    if source.size < span.file_length:
        raise PackError(f"{weights}: ends at {span.file_offset + source.size}, inside a span")
    target = np.empty(span.length, np.uint8)
    expand_span(span, source, target)
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
        return planes_fault(numbers, part.kept, part.planes)
    return ""


def _channel_fault(part: StoredPart, numbers: int) -> str:
    if not part.channels or part.channels % part.block:
        return f"channels: {part.channels} are not whole blocks of {part.block}"
    if numbers % part.channels:
        return f"channels: {numbers} numbers are not divided by {part.channels}"
    return ""
