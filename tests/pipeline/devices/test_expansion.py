"""Expanding stored weights: the library and NumPy give the same bits, and touch nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.native.compiling import LibraryError
from models.packs.records.spans import Encoding, Plane, PlaneBits, Span, Stored, StoredPart
from models.packs.storing import aligned, least_length
from pipeline.devices.expansion import Expansion, expansion_of
from tests.examples import examples
from tests.pipeline.devices.elementwise.chains import library, needs_library

PAGE = 4096
drawn = examples(12, many=1000)
ENCODINGS: list[Encoding] = ["bytes", "float16", "bfloat16", "int8"]
BITS: list[PlaneBits] = [0, 1, 2, 3, 4, 8]


@st.composite
def spans(draw: st.DrawFn) -> list[Span]:
    """Draw spans that follow each other, of parts with room between them."""
    made, offset, start = [], 0, 0
    for _ in range(draw(st.integers(1, 3))):
        parts, end = [], 0
        for _ in range(draw(st.integers(0, 3))):
            end += 4 * draw(st.integers(0, 9))
            parts.append(draw(st.one_of(stored_parts(end), parts_of_planes(end))))
            end += parts[-1].length
        length = -(-max(end, 1) // PAGE) * PAGE
        brought = max(aligned(least_length(tuple(parts))), 64)
        stored = Stored(offset=start, length=brought, parts=tuple(parts))
        made.append(Span(offset=offset, length=length, checksum="0" * 16, stored=stored))
        offset, start = offset + length, start + brought
    return made


@st.composite
def stored_parts(draw: st.DrawFn, offset: int) -> StoredPart:
    block = draw(st.sampled_from([1, 3, 8, 16]))
    channels = block * draw(st.integers(1, 3))
    numbers = channels * draw(st.integers(1, 45))
    return StoredPart(
        encoding=draw(st.sampled_from(ENCODINGS)),
        offset=offset,
        length=4 * numbers,
        channels=channels,
        block=block,
    )


@st.composite
def parts_of_planes(draw: st.DrawFn, offset: int) -> StoredPart:
    """Draw planes, whose bytes may have more exceptions, and more that is kept, than is said here."""
    blocks = draw(st.integers(1, 4))
    planes = tuple(
        Plane(bits=bits, exceptions=0 if bits == 8 else draw(st.integers(0, 255 * blocks)))
        for bits in draw(st.lists(st.sampled_from(BITS), min_size=4, max_size=4))
    )
    kept = 256 * draw(st.integers(0, blocks))
    return StoredPart(
        encoding="planes", offset=offset, length=1024 * blocks, planes=planes, kept=kept
    )


def made_of(found: list[Span], seed: int, native: bool) -> bytes:
    """Return what random bytes stand for, with what lies before and behind it."""
    one = Expansion(found, library() if native else LibraryError("none"))
    source = np.random.default_rng(seed).integers(0, 256, one.source_bytes, np.uint8)
    # Half numbers that are NaN have other bits as whole ones, and weights have none.
    source[1::2] &= 0x3B
    held = np.full(one.target_bytes + 128, 0xCD, np.uint8)
    one.run(source.data, held[64:-64].data)
    return held.tobytes()


@needs_library
@pytest.mark.parametrize("processor", ["avx2", "avx512", "neon"])
@drawn
@given(found=spans(), seed=st.integers(0, 99))
def test_the_library_gives_the_bits_of_numpy(processor: str, found: list[Span], seed: int) -> None:
    if not library().choose(processor):
        pytest.skip(f"this is no processor with {processor}")
    try:
        native = made_of(found, seed, native=True)
    finally:
        library().choose("")
    assert native == made_of(found, seed, native=False)
    assert native[:64] == native[-64:] == b"\xcd" * 64


def test_what_belongs_to_no_part_is_zero() -> None:
    part = StoredPart(encoding="bytes", offset=8, length=4)
    stored = Stored(offset=0, length=PAGE, parts=(part,))
    span = Span(offset=0, length=PAGE, checksum="0" * 16, stored=stored)
    target = np.full(PAGE, 7, np.uint8)
    Expansion([span]).run(np.full(PAGE, 9, np.uint8).data, target.data)
    assert target[8:12].tolist() == [9] * 4
    assert not target[:8].any()
    assert not target[12:].any()


@pytest.mark.parametrize("lengths", [(PAGE, 2 * PAGE), (2 * PAGE, PAGE)])
def test_memory_of_another_size_is_refused(lengths: tuple[int, int]) -> None:
    stored = Stored(offset=0, length=PAGE, parts=())
    span = Span(offset=0, length=PAGE, checksum="0" * 16, stored=stored)
    source, target = (np.zeros(length, np.uint8) for length in lengths)
    with pytest.raises(ValueError, match="bytes for"):
        Expansion([span]).run(source.data, target.data)


def test_weights_that_lie_as_they_are_need_none() -> None:
    assert expansion_of([Span(offset=0, length=PAGE, checksum="0" * 16)]) is None
