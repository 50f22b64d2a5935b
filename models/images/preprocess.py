"""From a photograph to the tensor that a network was trained on.

The recipe comes as a TOML file at compile time and is kept in the manifest.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray

from models.errors import ModelError
from models.images.picture_rows import (
    Numbers,
    PaddedPixels,
    PictureTensor,
    SizedPicture,
    StoredPixels,
)
from models.images.placement import (
    Box,
    CropRounding,
    ImagePlacement,
    Resize,
    Size,
    around,
    centre,
    inside,
    middle,
    nearly_inside,
    resized,
)
from models.images.resizing import (
    PILLOW_BYTES,
    OpenCvResize,
    ResizedPixels,
    Window,
    band_bytes,
    corner_resized,
    result_bytes,
)
from models.records import Bounds, Check, FiniteFloat, PositiveInt, Record
from models.toml_files import read_recipe

# 3 MB, for a process that only reads recipes.
if TYPE_CHECKING:
    from PIL.Image import Image, Resampling

# What the manifest says of a photograph, and the tensor that is made of it.


def _not_zero(value: float) -> float:
    if value == 0:
        raise ValueError("zero cannot divide")
    return value


#: Channels of a pixel.
Color = Literal["RGB", "BGR", "GRAY"]
#: One of Pillow's, or whose arithmetic it is.
Filter = Literal["nearest", "bilinear", "bicubic", "lanczos", "darknet", "opencv"]
#: Axes of the tensor.
Layout = Literal["NCHW", "NHWC", "CHW"]
Divisor = Annotated[FiniteFloat, Check(_not_zero)]

# Of a pixel of RGB as it is stored.
_STORED_BYTES = 3

# Pixels around one of the result that each filter weighs, at the size of the result; a weight is a double.
# Pillow has a table of weights for rows and one for columns, as long as the picture is.
_SUPPORTS = {"nearest": 0, "bilinear": 1, "bicubic": 2, "lanczos": 3}
_WEIGHT_BYTES = 8
# Tables of usual pictures, for which the margin of a process has room.
_USUAL_WEIGHTS_BYTES = 64 << 10


def _weights_bytes(support: int, image: Size, size: Size) -> int:
    """Return what is unusual of the tables for a resize from ``image`` to ``size``."""
    weights = sum(
        new * (2 * (support * max(-(-old // new), 1)) + 1)
        for old, new in zip(image, size, strict=True)
    )
    return max(weights * _WEIGHT_BYTES * bool(support) - _USUAL_WEIGHTS_BYTES, 0)


#: Of the tensor that a picture becomes: batch, channels, rows and columns, or with channels last.
PICTURE_RANK = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocess(Record):
    """How an image becomes a tensor: (pixel - mean) * scale / std, pixels from 0 to 255.

    ``resize`` stretches to ``size`` (width, height), or crops to its aspect ratio, or pads around the
    image (letterbox) with ``pad_value``. ``filter`` is one of Pillow's, antialiased and rounded to 8
    bits, or bilinear without antialiasing: "darknet", corner-aligned and not rounded, or "opencv", its
    INTER_LINEAR, whose letterbox is YOLOv5's and Ultralytics'; of both a crop resizes the short side first
    and cuts whole pixels. ``resize_size``: of a crop, what the image is resized to
    before ``size`` is cut of its middle, as torchvision and transformers do: [its shorter side], or [width,
    height]; ``crop_rounding``: where that begins. ``mean`` and ``std`` are one number, or one a channel.
    ``layout`` "CHW": as NCHW, without an axis for the batch.
    """

    size: tuple[PositiveInt, PositiveInt]
    resize: Resize = "stretch"
    resize_size: Annotated[tuple[PositiveInt, ...], Bounds(min_length=1, max_length=2)] | None = (
        None
    )
    crop_rounding: CropRounding = "down"
    filter: Filter = "bilinear"
    color: Color = "RGB"
    layout: Layout = "NCHW"
    mean: Annotated[tuple[FiniteFloat, ...], Bounds(min_length=1)] = (0.0,)
    std: Annotated[tuple[Divisor, ...], Bounds(min_length=1)] = (1.0,)
    scale: FiniteFloat = 1.0
    pad_value: Annotated[float, Bounds(ge=0, le=255)] = 127.5

    def __post_init__(self) -> None:
        for field, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, self.channels):
                raise ValueError(f"{field}: {len(numbers)} numbers for {self.channels} channels")
        if self.resize_size is None:
            return
        if self.resize != "crop" or not self._is_antialiased:
            raise ValueError('resize_size: goes with resize "crop" and a filter of Pillow\'s')
        sides = self.resize_size * (3 - len(self.resize_size))
        if any(side < length for side, length in zip(sides, self.size, strict=True)):
            raise ValueError(
                f"resize_size {list(self.resize_size)}: smaller than {list(self.size)}"
            )

    @property
    def _is_antialiased(self) -> bool:
        return self.filter in _SUPPORTS

    @property
    def channels(self) -> int:
        return 1 if self.color == "GRAY" else 3

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor that ``apply`` returns."""
        width, height = self.size
        if self.layout == "NHWC":
            return 1, height, width, self.channels
        planes = self.channels, height, width
        return planes if self.layout == "CHW" else (1, *planes)

    def placement(self, image: Size, whole: bool = False) -> ImagePlacement:
        """Return where an image of that size (width, height) lies in the tensor.

        ``whole``: where its pixels are; boxes count the half of one that an odd border leaves over.
        """
        if self.resize == "letterbox":
            in_pixels = whole or self.filter == "opencv"
            return ImagePlacement.letterboxed(self.size, self._made_size(image), in_pixels)
        if self.resize == "stretch":
            return ImagePlacement()
        if not self._is_antialiased:
            return ImagePlacement.resized_and_cut(self.size, image)
        return ImagePlacement.cut_and_resized(self._box(image), image)

    def _box(self, image: Size) -> Box:
        """Return what of an image of that size is resized to ``size`` by a crop; edges in its pixels."""
        if self.resize_size is None:
            return centre(self.size, image)
        outer = resized(self.resize_size, image)
        return middle(self.size, image, outer, self.crop_rounding)

    def tensor(self, image: "Image") -> PictureTensor:
        """Return the tensor for ``image`` (any mode), made as it is read; mean and std follow ``color``.

        Holds what it is made of: pixels at the network's size; with Darknet's filter ``image`` itself, or
        numbers where these take less.
        """
        if self.color == "GRAY":
            image = image.convert("L")
        picture = image if image.mode == "RGB" else image.convert("RGB")  # convert always copies
        factor = np.float32(self.scale) / np.asarray(self.std, np.float32)
        mean = np.asarray(self.mean, np.float32)
        numbers = Numbers(self.channels, self.color == "BGR", mean, factor)
        channels_last = self.layout == "NHWC"
        return PictureTensor(self._placed(picture), numbers, self.shape, channels_last)

    def held_bytes(self, image: Size) -> int:
        """Return the most that the ``tensor`` of an image of that size (width, height) holds."""
        width, height = self._made_size(image)
        if self.filter != "darknet":
            return width * height * _STORED_BYTES
        source = PILLOW_BYTES * image[0] * image[1] * (2 if self.color == "GRAY" else 1)
        return min(source, result_bytes(width, height))

    def work_bytes(self, image: Size) -> int:
        """Return the most that making the ``tensor`` of such an image takes, beside the image itself."""
        width, height = self._made_size(image)
        pixels = image[0] * image[1]
        grey = (1 + PILLOW_BYTES) * pixels if self.color == "GRAY" else 0
        if self._is_antialiased:  # Pillow resizes rows, then columns; then its result is copied
            across, result = PILLOW_BYTES * width * image[1], PILLOW_BYTES * width * height
            weights = _weights_bytes(_SUPPORTS[self.filter], image, (width, height))
            return grey + weights + result + max(across, _STORED_BYTES * width * height)
        if self.filter == "opencv":
            return grey + _STORED_BYTES * width * height + band_bytes(image[0], width)
        if PILLOW_BYTES * pixels <= result_bytes(width, height):
            return grey
        return grey + result_bytes(width, height) + band_bytes(image[0], width)

    def sees_all(self, image: Size) -> bool:
        """Return whether an image of that size (width, height) is as large as what is made of it.

        A smaller one of the same picture would be enlarged: the network would see less than it can.
        """
        width, height = self._made_size(image)
        if self.resize_size is not None:
            width, height = resized(self.resize_size, image)
        return image[0] >= width and image[1] >= height

    def _made_size(self, image: Size) -> Size:
        if self.resize != "letterbox":
            return self.size
        return (nearly_inside if self.filter == "opencv" else inside)(self.size, image)

    def apply(self, image: "Image") -> NDArray[np.float32]:
        """Return the whole tensor for ``image``, float32."""
        return np.asarray(self.tensor(image))

    def _placed(self, image: "Image") -> SizedPicture:
        """Return ``image`` (RGB) at the network's size."""
        if self.resize == "stretch":
            return self._resized(image, self.size)
        if self.resize == "crop":
            return self._cut(image)
        inner = self._made_size(image.size)
        return PaddedPixels(self._resized(image, inner), inner, self.size, self.pad_value)

    def _resized(self, image: "Image", size: Size, window: Window | None = None) -> SizedPicture:
        """Return ``image`` at ``size``; ``window``: only that of it, if the filter is not antialiased."""
        if self.filter == "darknet":
            return corner_resized(image, size, window)
        if self.filter == "opencv":
            if image.size != size:
                return ResizedPixels(OpenCvResize(image, size, window))
            return StoredPixels(image if window is None else image.crop(window))
        return StoredPixels(image.resize(size, _resampling(self.filter)))

    def _cut(self, image: "Image") -> SizedPicture:
        # Neither way makes pixels that are cut off: a thin strip must not grow to the size of a wall.
        width, height = self.size
        if self._is_antialiased:
            box = self._box(image.size)
            return StoredPixels(image.resize(self.size, _resampling(self.filter), box))
        outer = around(self.size, image.size)
        left, top = (outer[0] - width) // 2, (outer[1] - height) // 2
        return self._resized(image, outer, (left, top, left + width, top + height))


def read_preprocess(path: Path) -> Preprocess:
    """Read a recipe from a TOML file.

    Raises:
        ModelError: the file is missing, is not TOML, or a field is unknown or out of range.
    """
    return read_recipe(path, Preprocess)


def read_labels(path: Path) -> tuple[str, ...]:
    """Read labels from a text file, one a line, in the order of the network's outputs.

    Raises:
        ModelError: the file is missing, is not UTF-8, or has no labels.
    """
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except OSError as exc:
        raise ModelError(f"{path}: {exc.strerror or exc}") from exc
    except UnicodeDecodeError as exc:
        raise ModelError(f"{path}: labels are not UTF-8") from exc
    labels = tuple(line.strip() for line in lines if line.strip())
    if not labels:
        raise ModelError(f"{path}: no labels in it")
    return labels


def _resampling(name: str) -> "Resampling":
    """Return Pillow's filter called ``name``."""
    from PIL.Image import Resampling

    return Resampling[name.upper()]
