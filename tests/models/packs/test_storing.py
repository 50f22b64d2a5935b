"""How weights are stored, and what becomes of them: in NumPy, on numbers of all kinds."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.compiler.writing.storing import encoded
from models.packs.records.spans import Encoding, Plane, StoredPart
from models.packs.storing import (
    aligned,
    close_planes,
    expand_part,
    least_length,
    open_planes,
    places,
    planes_bytes,
    planes_fault,
    stored_bytes,
)
from tests.examples import examples, over

Floats = NDArray[np.float32]
drawn = examples(15, many=1000)
numbers = st.floats(-60000, 60000, width=32)


def of_shape(outer: int, rows: int, block: int, seed: int) -> Floats:
    """Return numbers of sizes that differ from channel to channel, some channels zero, some subnormal."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.integers(-46, 4, (outer, 1, block)) * rng.integers(0, 2, (outer, 1, block))
    return (rng.standard_normal((outer, rows, block)) * sizes).astype(np.float32)


def again(part: StoredPart, data: NDArray[np.uint8]) -> Floats:
    assert len(data) == stored_bytes(part)
    target = np.full(part.length, 0xAB, np.uint8)
    expand_part(part, data, target)
    return target.view(np.float32)


@drawn
@given(st.lists(numbers, min_size=1, max_size=50), st.sampled_from(["float16", "bfloat16"]))
def test_halves_are_the_nearest_there_are(values: list[float], encoding: Encoding) -> None:
    x = np.array(values, np.float32)
    part = StoredPart(encoding=encoding, offset=0, length=x.nbytes)
    found = again(part, encoded(part, x))
    digits, least = (11, 2.0**-25) if encoding == "float16" else (8, 2.0**-134)
    assert (np.abs(found - x) <= np.maximum(np.abs(x) * 2.0**-digits, least)).all()
    assert np.array_equal(again(part, encoded(part, found)), found)


@drawn
@given(st.integers(1, 4), st.integers(1, 20), st.sampled_from([1, 3, 8, 16]), st.integers(0, 99))
def test_bytes_are_within_half_a_step_of_their_channel(
    outer: int, rows: int, block: int, seed: int
) -> None:
    x = of_shape(outer, rows, block, seed)
    part = StoredPart(
        encoding="int8", offset=0, length=x.nbytes, channels=outer * block, block=block
    )
    found = again(part, encoded(part, x.reshape(-1))).reshape(x.shape)
    most = np.abs(x).max(axis=1, keepdims=True)
    # Beside half a step what rounding the scale, and a product with it, makes of 127 steps.
    assert (np.abs(found - x) <= most * (0.5 / 127 + 2.0**-22) + 127 * 2.0**-149).all()
    assert not found[np.broadcast_to(most == 0, x.shape)].any()


@st.composite
def parts(draw: st.DrawFn) -> StoredPart:
    encoding: Any = draw(st.sampled_from(["bytes", "float16", "bfloat16", "int8"]))
    block = draw(st.sampled_from([1, 8, 16]))
    channels = block * draw(st.integers(1, 5))
    length = 4 * channels * draw(st.integers(1, 50))
    return StoredPart(encoding=encoding, offset=0, length=length, channels=channels, block=block)


@drawn
@given(st.lists(parts(), max_size=5))
def test_parts_lie_one_behind_the_other(found: list[StoredPart]) -> None:
    end = 0
    for part, start in places(tuple(found)):
        assert start == aligned(end)
        end = start + stored_bytes(part)
    assert least_length(tuple(found)) == end


# Numbers in planes: the same bits come out, and few bytes are stored where there is little to store.

WHOLE = Plane(bits=8)


def weights(count: int = 1 << 16) -> Floats:
    return np.random.default_rng(5).standard_normal(count).astype(np.float32)


def pruned(share: float) -> Floats:
    made = weights()
    made[np.abs(made) < np.quantile(np.abs(made), share)] = 0
    return made


@drawn
@given(
    st.binary(min_size=1, max_size=3000),
    st.integers(1, 4),
    st.floats(0, 1),
    st.sampled_from([0xFFFFFFFF, 0xFFFF0000, 0xFFFFE000, 0x80000000]),
)
def test_the_same_bits_come_out(content: bytes, blocks: int, zeros: float, mask: int) -> None:
    words = np.resize(np.frombuffer(content * 4, np.uint32), 256 * blocks) & np.uint32(mask)
    words[np.random.default_rng(len(content)).random(words.size) < zeros] = 0
    made = close_planes(words.view(np.uint8))
    assert planes_fault(words.size, made.kept, made.planes) == ""
    assert planes_bytes(words.size, made.kept, made.planes) == made.data.size
    target = np.full(words.nbytes, 0xAB, np.uint8)
    open_planes(made.data, made.planes, made.kept, target)
    assert np.array_equal(target.view(np.uint32), words)


@over(
    "numbers, most",
    [
        (weights(), 0.856),  # 24 bits of sign and mantissa, 3 of the exponent and its exceptions
        (weights().astype(np.float16).astype(np.float32), 0.46),
        (pruned(0.5), 0.45),
        (pruned(0.9), 0.12),
        (np.zeros(1 << 16, np.float32), 0.005),
    ],
)
def test_what_has_little_in_it_takes_little(numbers: Floats, most: float) -> None:
    assert close_planes(numbers.view(np.uint8)).data.size < most * numbers.nbytes


def test_numbers_of_all_sizes_take_no_more_than_they_are() -> None:
    bits = np.random.default_rng(1).integers(0, 1 << 32, 1 << 14, np.uint32)
    made = close_planes(bits.view(np.uint8))
    assert made.planes == (WHOLE,) * 4
    assert made.data.size <= bits.nbytes + 64


@over(
    "count, kept, planes, fault",
    [
        (256, 0, (WHOLE,) * 3, "planes: 3, not 4"),
        (255, 0, (WHOLE,) * 4, "are not whole blocks of 256"),
        (512, 255, (WHOLE,) * 4, "are not whole blocks of 256"),
        (256, 512, (WHOLE,) * 4, "kept: 512 of 256"),
        (256, 0, (WHOLE, WHOLE, WHOLE, Plane(bits=0, exceptions=256)), "planes.3.exceptions: 256"),
        (256, 0, (Plane(bits=8, exceptions=1), WHOLE, WHOLE, WHOLE), "planes.0.exceptions: 1"),
    ],
)
def test_what_cannot_be_is_named(
    count: int, kept: int, planes: tuple[Plane, ...], fault: str
) -> None:
    assert fault in planes_fault(count, kept, planes)


def test_bytes_of_a_file_ask_for_256_times_as_many_at_most() -> None:
    """Else a small file could ask for any memory."""
    for count in (256, 1 << 20, 1 << 40):
        for kept in (0, 256):
            assert count * 4 <= 256 * planes_bytes(count, kept, (Plane(bits=0),) * 4)
