"""Numbers in planes: the same bits come out, and few bytes are stored where there is little to store."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.packs.records.spans import Plane
from models.packs.storing import close_planes, open_planes, planes_bytes, planes_fault
from tests.examples import examples

Floats = NDArray[np.float32]
drawn = examples(15, many=1000)
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


@pytest.mark.parametrize(
    ("numbers", "most"),
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


@pytest.mark.parametrize(
    ("count", "kept", "planes", "fault"),
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
