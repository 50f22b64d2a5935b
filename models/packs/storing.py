"""How weights are stored: each part of a span in an encoding, one behind the other in the file.

The account of the layout, and what expands it in NumPy; devices do the same faster, with the same bits
(pipeline/devices/expansion.py). Numbers are float32 in memory:

- "bytes": as they are.
- "float16", "bfloat16": half the bytes; every such number is one of float32.
- "int8": a float32 scale for each channel, then a byte for each number, which is times the scale.
- "planes": without loss, each of their four bytes in as few bits as it takes (models/packs/storing.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from models.errors import PackError
from models.packs.records.pieces import TENSOR_ALIGNMENT
from models.packs.records.spans import Plane, PlaneBits, Span, StoredPart

# Four planes of bytes: numbers without loss, in fewer bits where few bytes are common.
#
# A float32 is turned by a bit, so that its sign is last and its exponent a byte of its own. The four
# bytes of all numbers make four planes. One is stored as it is, or as codes of 0 to 4 bits for its
# commonest bytes, with the others beside them: a patched dictionary (Zukowski et al., "Super-Scalar
# RAM-CPU Cache Compression", ICDE 2006). Exponents of weights take three bits and a little; numbers that
# once had 16 bits have planes with few different bytes. Where many numbers are zero only the others are
# in the planes, and a bit for each says which.
#
# Layout (docs/reference/pack-format.md): dictionaries, bits of what is kept, planes. A block: 256 numbers.

PLANES = 4
BLOCK_NUMBERS = 256
DICTIONARY_BYTES = 16
#: Of a plane that is stored as it is.
WHOLE_BITS: Final = 8
_HEADER_BYTES = PLANES * DICTIONARY_BYTES
_CODE_BITS: tuple[PlaneBits, ...] = (0, 1, 2, 3, 4)
#: Of a code.
MAX_BITS = max(_CODE_BITS)
_CODE_BYTES = BLOCK_NUMBERS // 8  # of one bit of the codes of a block
_MOST_EXCEPTIONS = 255  # of a block
NUMBER_BYTES = 4
Bytes = NDArray[np.uint8]
_Words = NDArray[np.uint32]


@dataclass(frozen=True)
class Closed:
    """Numbers in planes: how, and their stored bytes. ``kept``: numbers in the planes, 0: all."""

    planes: tuple[Plane, ...]
    kept: int
    data: Bytes


def planes_bytes(count: int, kept: int, planes: Sequence[Plane]) -> int:
    """Return the stored bytes of ``count`` numbers of which ``kept`` (0: all) are in ``planes``."""
    mask = count // 8 if kept else 0
    return _HEADER_BYTES + mask + sum(_plane_bytes(kept or count, plane) for plane in planes)


def _plane_bytes(count: int, plane: Plane) -> int:
    if plane.bits == WHOLE_BITS:
        return count
    return count * plane.bits // 8 + count // BLOCK_NUMBERS + 2 * plane.exceptions


def planes_fault(count: int, kept: int, planes: Sequence[Plane]) -> str:
    """Return why ``count`` numbers cannot be in ``planes``; empty where they can."""
    if len(planes) != PLANES:
        return f"planes: {len(planes)}, not {PLANES}"
    if count % BLOCK_NUMBERS or kept % BLOCK_NUMBERS:
        return f"planes: {count} numbers, {kept} kept, are not whole blocks of {BLOCK_NUMBERS}"
    if kept > count:
        return f"kept: {kept} of {count} numbers"
    for number, plane in enumerate(planes):
        if plane.exceptions > _MOST_EXCEPTIONS * (kept or count) // BLOCK_NUMBERS:
            return f"planes.{number}.exceptions: {plane.exceptions}, more than blocks can have"
        if plane.bits == WHOLE_BITS and plane.exceptions:
            return f"planes.{number}.exceptions: {plane.exceptions} of what is stored as it is"
    return ""


def close_planes(content: Bytes) -> Closed:
    """Return the float32 numbers whose bytes are ``content``, whole blocks of them, in the fewest bytes."""
    words = content.view(np.uint32)
    every = _closed(words)
    zeros = words == 0
    # A bit for each number must be less than what zeros take.
    if not words.size // 32 < np.count_nonzero(zeros) < words.size:
        return every
    some = words[~zeros]
    few = _closed(np.pad(some, (0, -some.size % BLOCK_NUMBERS)))
    mask = np.packbits(~zeros, bitorder="little")
    if few.data.size + mask.size >= every.data.size:
        return every
    data = np.concatenate([few.data[:_HEADER_BYTES], mask, few.data[_HEADER_BYTES:]])
    return Closed(few.planes, some.size + -some.size % BLOCK_NUMBERS, data)


def open_planes(source: Bytes, planes: Sequence[Plane], kept: int, target: Bytes) -> None:
    """Write to ``target`` the bytes of the numbers that ``source`` stores.

    Whatever the source is, it stands for some numbers: exceptions behind the last one there is are left
    out, and numbers behind the last one kept are zero.
    """
    words = target.view(np.uint32)
    place = _HEADER_BYTES + (words.size // 8 if kept else 0)
    turned = np.empty((kept or words.size, NUMBER_BYTES), np.uint8)
    for number, plane in enumerate(planes):
        dictionary = source[number * DICTIONARY_BYTES :][:DICTIONARY_BYTES]
        end = place + _plane_bytes(len(turned), plane)
        turned[:, number] = _opened(source[place:end], plane, dictionary, len(turned))
        place = end
    numbers = turned.view(np.uint32).reshape(-1)
    numbers = (numbers >> np.uint32(1)) | (numbers << np.uint32(31))
    if not kept:
        words[:] = numbers
        return
    mask = np.unpackbits(source[_HEADER_BYTES:][: words.size // 8], bitorder="little").view(bool)
    places = np.flatnonzero(mask)[:kept]
    words[:] = 0
    words[places] = numbers[: places.size]


def _closed(words: _Words) -> Closed:
    turned = (words << np.uint32(1)) | (words >> np.uint32(31))
    columns = turned.view(np.uint8).reshape(-1, NUMBER_BYTES)
    made = [_close_plane(np.ascontiguousarray(columns[:, number])) for number in range(PLANES)]
    data = [dictionary for _, dictionary, _ in made] + [stored for _, _, stored in made]
    return Closed(tuple(plane for plane, _, _ in made), 0, np.concatenate(data))


def _close_plane(plane: Bytes) -> tuple[Plane, Bytes, Bytes]:
    """Return how ``plane`` is stored in the fewest bytes, its dictionary and what is stored."""
    counts = np.bincount(plane, minlength=256)
    order = np.argsort(-counts, kind="stable").astype(np.uint8)
    ways = [Plane(bits=WHOLE_BITS)]
    for bits in _CODE_BITS:
        rest = int(counts[order[1 << bits :]].sum())
        ways.append(Plane(bits=bits, exceptions=rest))
    for way in sorted(ways, key=lambda way: _plane_bytes(plane.size, way)):
        if way.bits == WHOLE_BITS:
            break
        dictionary = order[: 1 << way.bits]
        if _most_of_a_block(_exceptional(plane, dictionary)) <= _MOST_EXCEPTIONS:
            return way, order[:DICTIONARY_BYTES], _coded(plane, dictionary, way.bits)
    return Plane(bits=WHOLE_BITS), np.zeros(DICTIONARY_BYTES, np.uint8), plane


def _most_of_a_block(chosen: NDArray[np.bool_]) -> int:
    return int(chosen.reshape(-1, BLOCK_NUMBERS).sum(axis=1).max())


def _exceptional(plane: Bytes, dictionary: Bytes) -> NDArray[np.bool_]:
    known = np.zeros(256, bool)
    known[dictionary] = True
    return ~known[plane]


def _coded(plane: Bytes, dictionary: Bytes, bits: int) -> Bytes:
    """Return codes, exceptions of each block, and these."""
    code_of = np.zeros(256, np.uint8)
    code_of[dictionary] = np.arange(dictionary.size)
    # Bit b of code 32 j + i is bit j of byte i of the b-th 32 bytes of its block.
    codes = code_of[plane].reshape(-1, 1, 8, _CODE_BYTES)
    parts = codes >> np.arange(bits, dtype=np.uint8).reshape(-1, 1, 1) & 1
    packed = np.packbits(parts, axis=2, bitorder="little")
    blocks, places = np.nonzero(_exceptional(plane, dictionary).reshape(-1, BLOCK_NUMBERS))
    counts = np.bincount(blocks, minlength=plane.size // BLOCK_NUMBERS)
    exceptions = np.stack([places, plane.reshape(-1, BLOCK_NUMBERS)[blocks, places]], axis=1)
    return np.concatenate(
        [packed.reshape(-1), *(each.astype(np.uint8).reshape(-1) for each in (counts, exceptions))]
    )


def _opened(source: Bytes, plane: Plane, dictionary: Bytes, count: int) -> Bytes:
    if plane.bits == WHOLE_BITS:
        return source
    blocks = count // BLOCK_NUMBERS
    ends = np.cumsum([count * plane.bits // 8, blocks])
    packed, counts, exceptions = np.split(source, ends)
    parts = np.unpackbits(
        packed.reshape(blocks, plane.bits, 1, _CODE_BYTES), axis=2, count=8, bitorder="little"
    )
    weights = np.left_shift(np.uint8(1), np.arange(plane.bits, dtype=np.uint8)).reshape(-1, 1, 1)
    made: Bytes = dictionary[(parts * weights).sum(axis=1, dtype=np.uint8)].reshape(blocks, -1)
    own = exceptions.reshape(-1, 2)
    of_block = np.repeat(np.arange(blocks), counts)[: plane.exceptions]
    made[of_block, own[: of_block.size, 0]] = own[: of_block.size, 1]
    return made.reshape(-1)


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
