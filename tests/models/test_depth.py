"""Depth over photographs: cubic as PyTorch's, the same whatever the bands, bounded; PNG, NumPy."""

import io
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from models.depth import Depth, DepthMap, DepthRange, depth_bytes, depth_fault, depth_of
from models.images.placement import ImagePlacement
from server.requests.depths import npy, png
from tests.examples import over

SIDES = st.integers(1, 40)
SIZES = st.tuples(SIDES, SIDES)


def drawn(seed: int, area: tuple[int, int]) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=area).astype(np.float32)


def complete(depth_map: DepthMap) -> NDArray[np.float32]:
    return np.concatenate(list(depth_map.bands()))


def cubic(values: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float64]:
    """Keys' cubic convolution with a = -0.75, pixel by pixel in float64."""

    def weight(distance: float) -> float:
        a, x = -0.75, abs(distance)
        if x <= 1:
            return (a + 2) * x**3 - (a + 3) * x**2 + 1
        return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0

    def matrix(length: int, there: int) -> NDArray[np.float64]:
        weights = np.zeros((length, there))
        for index in range(length):
            position = (index + 0.5) * there / length - 0.5
            for tap in range(int(np.floor(position)) - 1, int(np.floor(position)) + 3):
                weights[index, min(max(tap, 0), there - 1)] += weight(position - tap)
        return weights

    across, down = matrix(size[0], values.shape[1]), matrix(size[1], values.shape[0])
    result: NDArray[np.float64] = down @ values @ across.T
    return result


@given(st.integers(0, 9), SIZES, SIZES)
def test_depth_is_cubic_between_the_networks_pixels(
    seed: int, area: tuple[int, int], size: tuple[int, int]
) -> None:
    values = drawn(seed, area)
    depth_map = DepthMap.of_photograph(values, ImagePlacement(), size)
    np.testing.assert_allclose(complete(depth_map), cubic(values, size), rtol=0, atol=1e-5)


def test_as_pytorch_interpolates() -> None:
    """Numbers of torch.nn.functional.interpolate (2.13) with mode bicubic: 0, 1, 4 over 9 pixels."""
    row = np.array([[0, 1, 4]], np.float32)
    result = complete(DepthMap.of_photograph(row, ImagePlacement(), (9, 1)))
    torch = [-0.11111116, 0.0, 0.14814717, 0.35185164, 1.0, 2.0555549, 3.1111112, 4.0, 4.3333321]
    np.testing.assert_allclose(result[0], torch, rtol=0, atol=3e-6)


def test_a_photograph_that_fills_a_part_of_the_input_has_that_part() -> None:
    """Beyond the edges of what the network saw, its outermost pixels go on."""
    values = np.tile(np.arange(8, dtype=np.float32), (8, 1))
    half = ImagePlacement((0.25, 0.0), (0.5, 1.0))
    result = complete(DepthMap.of_photograph(values, half, (4, 8)))
    np.testing.assert_allclose(result, np.tile(values[:1, 2:6], (8, 1)), atol=1e-6)
    beyond = ImagePlacement((-1.0, 0.0), (3.0, 1.0))
    result = complete(DepthMap.of_photograph(values, beyond, (24, 8)))
    np.testing.assert_array_equal(result[:, 0], 0)
    np.testing.assert_array_equal(result[:, -1], 7)


@over("width, height", [(1, 3000), (3000, 1), (700, 40), (64, 64)])
@over("area", [(50, 50), (400, 3)])
def test_memory_is_within_what_is_reserved(area: tuple[int, int], width: int, height: int) -> None:
    values = drawn(0, area)
    tracemalloc.start()
    try:
        depth_map = DepthMap.of_photograph(values.copy(), ImagePlacement(), (width, height))
        span = depth_map.range()
        for piece in png(depth_map, span, 16):
            assert piece is not None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= depth_bytes(area, (width, height)) + (128 << 10)


@over("bits", [8, 16])
@given(st.integers(0, 9), SIZES, SIZES)
def test_a_png_is_the_map_from_nothing_to_all_bits(
    bits: int, seed: int, area: tuple[int, int], size: tuple[int, int]
) -> None:
    depth_map = DepthMap.of_photograph(drawn(seed, area), ImagePlacement(), size)
    span, array = depth_map.range(), complete(depth_map)
    assert tuple(span) == (array.min(), array.max())
    with Image.open(io.BytesIO(b"".join(png(depth_map, span, bits)))) as image:
        assert image.text == {"minimum": repr(span.minimum), "maximum": repr(span.maximum)}  # type: ignore[attr-defined]
        shades = np.asarray(image).astype(np.int64)
    assert shades.shape == size[::-1]
    if span.minimum == span.maximum:
        assert not shades.any()
        return
    share = (array - array.min()) / (array.max() - array.min())
    np.testing.assert_array_equal(shades, np.floor(share * np.float32((1 << bits) - 1)))


def test_bands_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    depth_map = DepthMap.of_photograph(drawn(1, (7, 9)), ImagePlacement(), (33, 50))
    span, expected = depth_map.range(), complete(depth_map)

    def shades() -> NDArray[np.uint16]:
        return np.asarray(Image.open(io.BytesIO(b"".join(png(depth_map, span, 16)))))

    as_one = shades()
    monkeypatch.setattr("models.depth._BAND_PIXELS", 40)
    assert len(list(depth_map.bands())) == 50
    np.testing.assert_array_equal(complete(depth_map), expected)
    np.testing.assert_array_equal(shades(), as_one)


def test_numbers_are_a_file_of_numpy() -> None:
    values = drawn(2, (5, 6))
    depth_map = DepthMap.of_network(values)
    np.testing.assert_array_equal(np.load(io.BytesIO(b"".join(npy(depth_map)))), values)


def test_an_output_that_is_no_depth_has_a_message() -> None:
    outputs = {
        "a": ("float32", (1, 2, 8, 8)),
        "b": ("float32", (1, 1, 8, 8)),
        "c": ("int64", (1, 8, 8)),
    }
    assert depth_fault(Depth(output="b"), outputs) is None
    assert depth_fault(Depth(output="a"), outputs) == (
        "depth: output 'a' is float32[1, 2, 8, 8]; it is float32[1, rows, columns]"
    )
    assert "int64" in (depth_fault(Depth(output="c"), outputs) or "")
    assert "there are 'a', 'b', 'c'" in (depth_fault(Depth(output="d"), outputs) or "")


@over("value", [np.nan, np.inf, -np.inf, 3e38])
def test_numbers_that_are_none_are_no_depth(value: float) -> None:
    values = np.ones((1, 2, 2), np.float32)
    assert depth_of(Depth(output="y"), values) is not None
    values[0, 1, 1] = value
    assert depth_of(Depth(output="y"), values) is None


def test_a_map_of_one_number_is_black() -> None:
    assert not DepthRange(2.0, 2.0).pixels(np.full((2, 2), 2, np.float32), 255).any()
