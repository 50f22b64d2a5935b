"""Darknet's way from photograph to tensor, against its loops, and the way back for boxes."""

from typing import Literal

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from models.images.placement import ImagePlacement, around, inside
from models.images.preprocess import Preprocess
from models.images.resizing import CornerResize, ResizedPixels, Window
from tests.examples import over

SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))
RESIZES: tuple[Literal["stretch", "crop", "letterbox"], ...] = ("stretch", "crop", "letterbox")


def photograph(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def resize_corners(
    picture: Image.Image, size: tuple[int, int], window: Window | None = None
) -> NDArray[np.float32]:
    resize = CornerResize(picture, size, window)
    return ResizedPixels(resize).rows(0, resize.height)


def loops(image: Image.Image, size: tuple[int, int]) -> NDArray[np.float64]:
    """resize_image: columns first, then rows; a result of one pixel is the last of the source."""
    pixels = np.asarray(image, np.float64)
    (width, height), (rows, columns) = size, pixels.shape[:2]
    part = np.zeros((rows, width, 3))
    for c in range(width):
        if c == width - 1 or columns == 1:
            part[:, c] = pixels[:, columns - 1]
        else:
            exact = c * (columns - 1) / (width - 1)
            whole = min(int(exact), columns - 2)
            part[:, c] = (1 - exact + whole) * pixels[:, whole]
            part[:, c] += (exact - whole) * pixels[:, whole + 1]
    result = np.zeros((height, width, 3))
    for r in range(height):
        if r == height - 1 or rows == 1:
            result[r] = part[rows - 1]
        else:
            exact = r * (rows - 1) / (height - 1)
            whole = min(int(exact), rows - 2)
            result[r] = (1 - exact + whole) * part[whole] + (exact - whole) * part[whole + 1]
    return result


@given(image=SIZES, size=SIZES)
@example(image=(1, 1), size=(5, 5))
@example(image=(1, 40), size=(40, 1))
@example(image=(40, 33), size=(1, 1))
@example(image=(2, 2), size=(40, 39))
def test_resize_is_darknets(image: tuple[int, int], size: tuple[int, int]) -> None:
    picture = photograph(*image)
    found = resize_corners(picture, size)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, loops(picture, size), atol=0.01)


@given(image=SIZES, size=SIZES, data=st.data())
def test_a_window_is_a_part_of_the_whole(
    image: tuple[int, int], size: tuple[int, int], data: st.DataObject
) -> None:
    left, top = data.draw(st.integers(0, size[0] - 1)), data.draw(st.integers(0, size[1] - 1))
    right, bottom = (
        data.draw(st.integers(left + 1, size[0])),
        data.draw(st.integers(top + 1, size[1])),
    )
    picture = photograph(*image)
    part = resize_corners(picture, size, (left, top, right, bottom))
    np.testing.assert_array_equal(part, resize_corners(picture, size)[top:bottom, left:right])


def test_corners_stay_and_nothing_is_rounded() -> None:
    picture = Image.new("RGB", (2, 1))
    picture.putpixel((1, 0), (255, 255, 255))
    row = resize_corners(picture, (5, 1))[0, :, 0]
    assert row.tolist() == [0, 63.75, 127.5, 191.25, 255]


@given(size=SIZES, image=st.tuples(st.integers(1, 9000), st.integers(1, 9000)))
def test_fitted_sizes(size: tuple[int, int], image: tuple[int, int]) -> None:
    """One side is the input's; the other is the aspect ratio's, cut to whole pixels."""
    within, without = inside(size, image), around(size, image)
    for fitted in (within, without):
        assert size[0] in fitted[:1] or size[1] in fitted[1:]
    assert within[0] <= size[0] <= without[0]
    assert within[1] <= size[1] <= without[1]
    if within[0] == size[0]:
        assert within[1] in (1, image[1] * size[0] // image[0], size[1])
    else:
        assert within[0] in (1, image[0] * size[1] // image[1])
    assert min(within) >= 1


@over(
    "image, inner",
    [
        ((773, 512), (608, 402)),
        ((512, 773), (402, 608)),
        ((608, 608), (608, 608)),
        ((5000, 2), (608, 1)),
        ((1, 1), (608, 608)),
    ],
)
def test_letterbox_as_darknet_embeds(image: tuple[int, int], inner: tuple[int, int]) -> None:
    assert inside((608, 608), image) == inner
    recipe = Preprocess(size=(608, 608), resize="letterbox", filter="darknet")
    tensor = recipe.apply(Image.new("RGB", image, (255, 255, 255)))[0]
    left, top = (608 - inner[0]) // 2, (608 - inner[1]) // 2
    assert (tensor[:, top : top + inner[1], left : left + inner[0]] == 255).all()
    bars = tensor.size - 3 * inner[0] * inner[1]
    assert (tensor == 127.5).sum() == bars


def test_grey_of_darknet_is_one_half() -> None:
    recipe = Preprocess(size=(8, 8), resize="letterbox", filter="darknet", scale=1 / 255)
    assert recipe.apply(Image.new("RGB", (8, 2)))[0, 0, 0, 0] == np.float32(0.5)


@given(image=SIZES, size=SIZES)
def test_crop_is_resized_then_cut(image: tuple[int, int], size: tuple[int, int]) -> None:
    """Darknet's resize_min and crop_image, without the pixels that are cut off."""
    outer = around(size, image)
    left, top = (outer[0] - size[0]) // 2, (outer[1] - size[1]) // 2
    picture = photograph(*image)
    whole = loops(picture, outer)[top : top + size[1], left : left + size[0]]
    recipe = Preprocess(size=size, resize="crop", filter="darknet", layout="NHWC")
    np.testing.assert_allclose(recipe.apply(picture)[0], whole, atol=0.01)


def test_a_thin_strip_does_not_become_a_wall() -> None:
    recipe = Preprocess(size=(64, 64), resize="crop", filter="darknet")
    assert recipe.apply(photograph(20_000, 1)).shape == (1, 3, 64, 64)


@over("kind", ["darknet", "bilinear", "opencv"])
@over("resize", RESIZES)
@over("size", [(96, 96), (64, 128), (97, 51)])
@over("image", [(400, 300), (300, 400), (301, 97), (31, 30)])
def test_what_lies_somewhere_in_the_tensor_is_found_again(
    image: tuple[int, int],
    size: tuple[int, int],
    resize: Literal["stretch", "crop", "letterbox"],
    kind: Literal["darknet", "bilinear", "opencv"],
) -> None:
    """A white rectangle in the middle, measured in the tensor, comes back where it was painted."""
    width, height = image
    painted = (width * 7 // 16, height * 7 // 16, width * 9 // 16, height * 9 // 16)
    picture = Image.new("RGB", image)
    picture.paste((255, 255, 255), painted)
    recipe = Preprocess(size=size, resize=resize, filter=kind, pad_value=0)
    plane = recipe.apply(picture)[0, 0] > 127
    columns, rows = np.flatnonzero(plane.any(axis=0)), np.flatnonzero(plane.any(axis=1))
    left, right = columns[0] / size[0], (columns[-1] + 1) / size[0]
    top, bottom = rows[0] / size[1], (rows[-1] + 1) / size[1]
    box = np.array([[(left + right) / 2, (top + bottom) / 2, right - left, bottom - top]])
    placement = recipe.placement(image)
    x, y, w, h = placement.to_image(box)[0] * (*image, *image)
    found = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
    # An edge lies on a pixel of the tensor, and Darknet's corners stretch half a pixel of each.
    pixel = max(image[0] / size[0] / placement.extent[0], image[1] / size[1] / placement.extent[1])
    np.testing.assert_allclose(found, painted, atol=1.5 * pixel + 1)


@given(size=SIZES, image=SIZES, resize=st.sampled_from(RESIZES))
def test_the_way_back_keeps_the_middle(
    size: tuple[int, int], image: tuple[int, int], resize: Literal["stretch", "crop", "letterbox"]
) -> None:
    placement = Preprocess(size=size, resize=resize).placement(image)
    middle = placement.to_image(np.array([[0.5, 0.5, 0.0, 0.0]]))
    np.testing.assert_allclose(middle, [[0.5, 0.5, 0, 0]], atol=1e-9)


def test_stretched_boxes_stay_as_they_are() -> None:
    boxes = np.array([[0.1, 0.2, 0.3, 0.4]])
    np.testing.assert_array_equal(ImagePlacement().to_image(boxes), boxes)
