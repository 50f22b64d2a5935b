"""Tensors of photographs row by row: the same bits, in whatever order and however often they are read."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from models.images.preprocess import Preprocess
from tests.examples import over

RECIPES: dict[str, dict[str, Any]] = {
    "stretched": {"resize": "stretch", "mean": (1, 2, 3), "std": (4, 5, 6)},
    "cropped, BGR": {"resize": "crop", "color": "BGR", "mean": (1, 2, 3)},
    "letterboxed, grey": {"resize": "letterbox", "color": "GRAY", "scale": 0.1},
    "Darknet, stretched": {"resize": "stretch", "filter": "darknet"},
    "Darknet, cropped": {"resize": "crop", "filter": "darknet"},
    "Darknet, letterboxed": {"resize": "letterbox", "filter": "darknet", "scale": 1 / 255},
    "OpenCV, stretched, grey": {"resize": "stretch", "filter": "opencv", "color": "GRAY"},
    "OpenCV, cropped": {"resize": "crop", "filter": "opencv"},
    "OpenCV, letterboxed": {"resize": "letterbox", "filter": "opencv", "scale": 1 / 255},
}
SIZES = st.tuples(st.integers(1, 60), st.integers(1, 60))


def photograph(width: int, height: int) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(noise)


@pytest.mark.parametrize("name", RECIPES)
@given(image=SIZES, size=SIZES, data=st.data())
def test_rows_are_those_of_the_whole(
    name: str, image: tuple[int, int], size: tuple[int, int], data: st.DataObject
) -> None:
    recipe = Preprocess(size=size, **RECIPES[name])
    picture = photograph(*image)
    whole = recipe.apply(picture)
    tensor = recipe.tensor(picture)
    assert (tensor.shape, tensor.dtype) == (whole.shape, whole.dtype)
    for _ in range(4):
        first = data.draw(st.integers(0, size[1] - 1))
        end = data.draw(st.integers(first + 1, size[1]))
        plane = data.draw(st.integers(0, recipe.channels - 1))
        rows = np.empty((recipe.channels - plane, end - first, size[0]), np.float32)
        tensor.put_rows(rows, plane, first)
        np.testing.assert_array_equal(rows, whole[0, plane:, first:end])
        column = data.draw(st.integers(0, size[0] - 1))
        part = np.empty((*rows.shape[:2], data.draw(st.integers(1, size[0] - column))), np.float32)
        tensor.put_rows(part, plane, first, column)
        np.testing.assert_array_equal(part, rows[:, :, column : column + part.shape[2]])


@over("name", RECIPES)
def test_channels_come_last_where_the_recipe_says_so(name: str) -> None:
    picture = photograph(40, 30)
    first = Preprocess(size=(17, 35), **RECIPES[name]).apply(picture)
    last = Preprocess(size=(17, 35), layout="NHWC", **RECIPES[name]).apply(picture)
    np.testing.assert_array_equal(last, first.transpose(0, 2, 3, 1))


def test_windows_that_overlap_are_made_once() -> None:
    """A region with three rows of overlap: every row of the picture is asked for once."""
    tensor = Preprocess(size=(8, 100)).tensor(photograph(8, 100))
    asked: list[int] = []
    made = tensor._pixels.rows

    class Watched:
        n_bytes, band_rows = 0, 16

        def rows(self, first: int, end: int) -> Any:
            asked.extend(range(first, end))
            return made(first, end)

    tensor._pixels = Watched()
    for first in range(0, 96, 2):
        tensor.put_rows(np.empty((3, 5, 8), np.float32), 0, first)
    assert asked == list(range(100))


@over("name", RECIPES)
@given(image=SIZES, size=SIZES)
def test_what_a_tensor_holds_is_known_before_there_is_a_picture(
    name: str, image: tuple[int, int], size: tuple[int, int]
) -> None:
    recipe = Preprocess(size=size, **RECIPES[name])
    assert recipe.tensor(photograph(*image)).n_bytes <= recipe.held_bytes(image)


@over("name", RECIPES)
@over("image", [(20, 20), (600, 400)])
def test_no_more_is_held_than_the_picture_or_its_tensor(name: str, image: tuple[int, int]) -> None:
    tensor = Preprocess(size=(64, 64), **RECIPES[name]).tensor(photograph(*image))
    pixels = 3 * 64 * 64
    if RECIPES[name].get("filter") == "darknet":
        assert tensor.n_bytes <= min(4 * image[0] * image[1], 4 * pixels)
    else:
        assert tensor.n_bytes <= pixels
