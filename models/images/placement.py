"""Where an image lies in the input of a network, and the way back for boxes: geometry, no pixels.

Sizes are (width, height) in pixels.
"""

from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

Size = tuple[int, int]
Resize = Literal["stretch", "crop", "letterbox"]
#: Where a crop of whole pixels begins if half a pixel is left over: before it, or at the even neighbour.
CropRounding = Literal["down", "even"]
Box = tuple[float, float, float, float]


def inside(size: Size, image: Size) -> Size:
    """Return how large ``image`` becomes inside ``size``: Darknet's letterbox_image, at least a pixel."""
    width, height = size
    if width * image[1] < height * image[0]:
        return width, max(1, image[1] * width // image[0])
    return max(1, image[0] * height // image[1]), height


def nearly_inside(size: Size, image: Size) -> Size:
    """As ``inside``, each side rounded to the nearest whole pixel: YOLOv5's and Ultralytics' letterbox."""
    ratio = min(size[0] / image[0], size[1] / image[1])
    return max(1, round(image[0] * ratio)), max(1, round(image[1] * ratio))


def around(size: Size, image: Size) -> Size:
    """Return how large ``image`` becomes around ``size``: Darknet's resize_min, for any aspect ratio."""
    width, height = size
    if width * image[1] > height * image[0]:
        return width, max(height, image[1] * width // image[0])
    return max(width, image[0] * height // image[1]), height


def resized(resize_size: tuple[int, ...], image: Size) -> Size:
    """Return how large ``image`` becomes: [shorter side], the other cut to whole pixels, or both."""
    if len(resize_size) > 1:
        return resize_size[0], resize_size[1]
    (short,) = resize_size
    width, height = image
    if width <= height:
        return short, short * height // width
    return short * width // height, short


def middle(size: Size, image: Size, outer: Size, rounding: CropRounding) -> Box:
    """Return what of ``image`` is seen where it becomes ``outer``, of whose middle ``size`` is cut.

    Edges in pixels of ``image``, those of whole pixels of ``outer``.
    """
    edges = []
    for length, new, old in zip(size, outer, image, strict=True):
        first = round((new - length) / 2) if rounding == "even" else (new - length) // 2
        edges.append((first * old / new, (first + length) * old / new))
    (left, right), (top, bottom) = edges
    return left, top, right, bottom


def centre(size: Size, image: Size) -> Box:
    """Return the largest box of ``image`` with the aspect ratio of ``size``: its edges in pixels."""
    ratio = max(size[0] / image[0], size[1] / image[1])
    left = max(image[0] - size[0] / ratio, 0) / 2
    top = max(image[1] - size[1] / ratio, 0) / 2
    return left, top, image[0] - left, image[1] - top


@dataclass(frozen=True)
class ImagePlacement:
    """The image as a rectangle in a network's input, whose own width and height are 1.

    ``corner`` is its left and top edge (below 0: cut off), ``extent`` its width and height.
    """

    corner: tuple[float, float] = (0.0, 0.0)
    extent: tuple[float, float] = (1.0, 1.0)

    @classmethod
    def letterboxed(cls, size: Size, inner: Size, whole: bool = False) -> Self:
        """Return the place of an image that became ``inner`` in the middle of ``size``.

        The half pixel that an odd border leaves over is counted, as in Darknet's correct_yolo_boxes, unless
        it is to be where its pixels are: they stand on ``whole`` ones.
        """
        left, top = size[0] - inner[0], size[1] - inner[1]
        if whole:
            left, top = left - left % 2, top - top % 2
        return cls(
            (left / 2 / size[0], top / 2 / size[1]), (inner[0] / size[0], inner[1] / size[1])
        )

    @classmethod
    def resized_and_cut(cls, size: Size, image: Size) -> Self:
        """Return the place of an image that was resized ``around`` the input and then cut."""
        outer = around(size, image)
        return cls(
            (-((outer[0] - size[0]) // 2) / size[0], -((outer[1] - size[1]) // 2) / size[1]),
            (outer[0] / size[0], outer[1] / size[1]),
        )

    @classmethod
    def cut_and_resized(cls, box: Box, image: Size) -> Self:
        """Return the place of an image of which ``box`` fills the input."""
        left, top, right, bottom = box
        width, height = right - left, bottom - top
        return cls((-left / width, -top / height), (image[0] / width, image[1] / height))

    def to_image(self, boxes: NDArray[Any]) -> NDArray[np.float64]:
        """Return ``boxes`` [n, 4] (centre x, y, width, height) relative to the image, not the input."""
        centres = self.points_to_image(boxes[:, :2])
        return np.concatenate([centres, boxes[:, 2:] / np.array(self.extent)], axis=1)

    def points_to_input(self, points: NDArray[Any]) -> NDArray[np.float64]:
        """Return ``points`` [..., 2] (x, y), which are relative to the image, relative to the input."""
        return np.asarray(np.array(self.corner) + points * np.array(self.extent))

    def points_to_image(self, points: NDArray[Any]) -> NDArray[np.float64]:
        """Return ``points`` [..., 2] (x, y) relative to the image, not the input."""
        return np.asarray((points - np.array(self.corner)) / np.array(self.extent))
