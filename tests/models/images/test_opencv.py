"""OpenCV's bilinear resize, against its loops and its bits; the letterbox of YOLOv5 and Ultralytics."""

import math
import zlib

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from models.images.preprocess import Preprocess
from models.images.resizing import OpenCvResize, ResizedPixels
from tests.examples import over

Size = tuple[int, int]
SIZES = st.tuples(st.integers(1, 24), st.integers(1, 24))


def drawn(width: int, height: int) -> NDArray[np.uint8]:
    return np.random.default_rng([3, width, height]).integers(0, 256, (height, width, 3), np.uint8)


def resized(pixels: NDArray[np.uint8], size: Size) -> NDArray[np.float32]:
    resize = OpenCvResize(Image.fromarray(pixels), size)
    return ResizedPixels(resize).rows(0, resize.height)


def weights(index: int, old: int, new: int) -> tuple[int, int, int]:
    """The first of two pixels between which a result lies, and the weights of both in 2,048ths."""
    exact = np.float32((index + 0.5) * (old / new) - 0.5)
    first = math.floor(exact)
    share = exact - np.float32(first)
    return first, round(float((1 - share) * 2048)), round(float(share * 2048))


def loops(pixels: NDArray[np.uint8], size: Size) -> NDArray[np.int64]:
    """HResizeLinear, then VResizeLinear of eight bits (modules/imgproc/src/resize.cpp)."""
    (width, height), (rows, columns) = size, pixels.shape[:2]
    values = pixels.astype(np.int64)
    across = np.empty((rows, width, 3), np.int64)
    for x in range(width):
        first, near, far = weights(x, columns, width)
        left, right = max(first, 0), min(first + 1, columns - 1)
        across[:, x] = values[:, left] * near + values[:, right] * far
    result = np.empty((height, width, 3), np.int64)
    for y in range(height):
        first, near, far = weights(y, rows, height)
        upper, lower = across[max(first, 0)] >> 4, across[min(first + 1, rows - 1)] >> 4
        result[y] = ((upper * near >> 16) + (lower * far >> 16) + 2) >> 2
    return result


@given(image=SIZES, size=SIZES)
@example(image=(1, 1), size=(5, 5))
@example(image=(1, 24), size=(24, 1))
@example(image=(24, 13), size=(1, 1))
def test_resize_is_opencvs(image: Size, size: Size) -> None:
    pixels = drawn(*image)
    np.testing.assert_array_equal(resized(pixels, size), loops(pixels, size))


@over(
    "image, size, checksum",
    [
        ((64, 48), (32, 24), 0x5AEE298),
        ((97, 61), (40, 25), 0x599C278D),
        ((31, 20), (96, 62), 0xCECBF9DF),
        ((33, 7), (5, 40), 0x5DE98207),
        ((40, 1), (7, 3), 0x57BC58FA),
    ],
)
def test_bits_are_those_of_opencv(image: Size, size: Size, checksum: int) -> None:
    """Checksums of what ``cv2.resize`` of OpenCV 4.10 and 5.0 makes of the same pixels."""
    assert zlib.crc32(resized(drawn(*image), size).astype(np.uint8).tobytes()) == checksum


@given(image=SIZES, size=SIZES)
def test_crop_is_resized_then_cut(image: Size, size: Size) -> None:
    recipe = Preprocess(size=size, resize="crop", filter="opencv", layout="NHWC")
    ratio = max(size[0] / image[0], size[1] / image[1])
    outer = max(size[0], int(image[0] * ratio + 1e-9)), max(size[1], int(image[1] * ratio + 1e-9))
    left, top = (outer[0] - size[0]) // 2, (outer[1] - size[1]) // 2
    full = loops(drawn(*image), outer)[top : top + size[1], left : left + size[0]]
    np.testing.assert_array_equal(recipe.apply(Image.fromarray(drawn(*image)))[0], full)


@given(image=st.tuples(st.integers(1, 90), st.integers(1, 90)), size=SIZES)
@example(image=(768, 511), size=(96, 64))
def test_letterbox_is_ultralytics(image: Size, size: Size) -> None:
    """LetterBox of its data/augment.py: sides to the nearest pixel, the odd one of a border behind.

    Boxes come back as by scale_boxes of utils/ops.py, from where the pixels are.
    """
    ratio = min(size[1] / image[1], size[0] / image[0])
    inner = max(round(image[0] * ratio), 1), max(round(image[1] * ratio), 1)
    left, top = (round((size[side] - inner[side]) / 2 - 0.1) for side in (0, 1))
    recipe = Preprocess(
        size=size, resize="letterbox", filter="opencv", pad_value=114, layout="NHWC"
    )
    pixels = drawn(*image)
    expected = np.full((size[1], size[0], 3), 114)
    expected[top : top + inner[1], left : left + inner[0]] = loops(pixels, inner)
    np.testing.assert_array_equal(recipe.apply(Image.fromarray(pixels))[0], expected)
    edges = np.array([[0.25, 0.5], [0.75, 0.5]]) * size
    back = recipe.placement(image).points_to_image(edges / size) * image
    gains = inner[0] / image[0], inner[1] / image[1]
    np.testing.assert_allclose(back, (edges - (left, top)) / gains, atol=1e-9)
