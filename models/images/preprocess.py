"""From a photograph to the tensor that a network was trained on.

The recipe comes as a TOML file at compile time and is kept in the manifest.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    PositiveInt,
    model_validator,
)

from models.errors import ModelError
from models.images.placement import ImagePlacement, Resize, Size, around, centre, inside
from models.images.resize import PILLOW_BYTES, CornerResize, band_bytes, made_bytes, smaller
from models.images.rows import Numbers, PaddedPixels, PictureTensor, SizedPicture, StoredPixels
from models.recipe_files import read_recipe


def _not_zero(value: float) -> float:
    if value == 0:
        raise ValueError("zero cannot divide")
    return value


Divisor = Annotated[FiniteFloat, AfterValidator(_not_zero)]

# Of a pixel of RGB as it is stored.
_STORED_BYTES = 3

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


class Preprocess(BaseModel):
    """How an image becomes a tensor: (pixel - mean) * scale / std, pixels from 0 to 255.

    ``resize`` stretches to ``size`` (width, height), or crops to its aspect ratio, or pads around the
    image (letterbox) with ``pad_value``. ``filter`` is one of Pillow's, antialiased and rounded to 8
    bits, or "darknet": corner-aligned bilinear, neither antialiased nor rounded; there a crop resizes
    the short side first and cuts whole pixels. ``mean`` and ``std`` are one number, or one a channel.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    size: tuple[PositiveInt, PositiveInt]
    resize: Resize = "stretch"
    filter: Literal["nearest", "bilinear", "bicubic", "lanczos", "darknet"] = "bilinear"
    color: Literal["RGB", "BGR", "GRAY"] = "RGB"
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    mean: Annotated[tuple[FiniteFloat, ...], Field(min_length=1)] = (0.0,)
    std: Annotated[tuple[Divisor, ...], Field(min_length=1)] = (1.0,)
    scale: FiniteFloat = 1.0
    pad_value: float = Field(127.5, ge=0, le=255)

    @model_validator(mode="after")
    def _one_a_channel(self) -> Self:
        for field, numbers in (("mean", self.mean), ("std", self.std)):
            if len(numbers) not in (1, self.channels):
                raise ValueError(f"{field}: {len(numbers)} numbers for {self.channels} channels")
        return self

    @property
    def channels(self) -> int:
        return 1 if self.color == "GRAY" else 3

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the tensor that ``apply`` returns."""
        width, height = self.size
        if self.layout == "NCHW":
            return 1, self.channels, height, width
        return 1, height, width, self.channels

    def placement(self, image: Size, whole: bool = False) -> ImagePlacement:
        """Return where an image of that size (width, height) lies in the tensor.

        ``whole``: where its pixels are; boxes count the half of one that an odd border leaves over.
        """
        if self.resize == "letterbox":
            return ImagePlacement.letterboxed(self.size, image, whole)
        if self.resize == "stretch":
            return ImagePlacement()
        if self.filter == "darknet":
            return ImagePlacement.resized_and_cut(self.size, image)
        return ImagePlacement.cut_and_resized(self.size, image)

    def tensor(self, image: Image.Image) -> PictureTensor:
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
        return min(source, made_bytes(width, height))

    def work_bytes(self, image: Size) -> int:
        """Return the most that making the ``tensor`` of such an image takes, beside the image itself."""
        width, height = self._made_size(image)
        pixels = image[0] * image[1]
        grey = (1 + PILLOW_BYTES) * pixels if self.color == "GRAY" else 0
        if self.filter != "darknet":  # Pillow resizes rows, then columns; then its result is copied
            across, result = PILLOW_BYTES * width * image[1], PILLOW_BYTES * width * height
            return grey + result + max(across, _STORED_BYTES * width * height)
        if PILLOW_BYTES * pixels <= made_bytes(width, height):
            return grey
        return grey + made_bytes(width, height) + band_bytes(image[0], width)

    def _made_size(self, image: Size) -> Size:
        return inside(self.size, image) if self.resize == "letterbox" else self.size

    def apply(self, image: Image.Image) -> NDArray[np.float32]:
        """Return the whole tensor for ``image``, float32."""
        return np.asarray(self.tensor(image))

    def _placed(self, image: Image.Image) -> SizedPicture:
        """Return ``image`` (RGB) at the network's size."""
        if self.resize == "stretch":
            return self._resized(image, self.size)
        if self.resize == "crop":
            return self._cut(image)
        inner = inside(self.size, image.size)
        return PaddedPixels(self._resized(image, inner), inner, self.size, self.pad_value)

    def _resized(self, image: Image.Image, size: Size) -> SizedPicture:
        if self.filter == "darknet":
            return smaller(CornerResize(image, size))
        return StoredPixels(image.resize(size, _FILTERS[self.filter]))

    def _cut(self, image: Image.Image) -> SizedPicture:
        # Neither way makes pixels that are cut off: a thin strip must not grow to the size of a wall.
        width, height = self.size
        if self.filter == "darknet":
            outer = around(self.size, image.size)
            left, top = (outer[0] - width) // 2, (outer[1] - height) // 2
            return smaller(CornerResize(image, outer, (left, top, left + width, top + height)))
        box = centre(self.size, image.size)
        return StoredPixels(image.resize(self.size, _FILTERS[self.filter], box))


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
