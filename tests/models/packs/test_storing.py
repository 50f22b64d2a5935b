"""How weights are stored, and what becomes of them: in NumPy, on numbers of all kinds."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.compiler.writing.storing import encoded
from models.packs.records.spans import Encoding, StoredPart
from models.packs.storing import (
    aligned,
    expand_part,
    least_length,
    places,
    stored_bytes,
)
from tests.examples import examples

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
