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
    resized,
)
from models.records import Bounds, Check, FiniteFloat, PositiveInt, Record
from models.toml_files import read_recipe

# 3 MB, for a process that only reads recipes.
if TYPE_CHECKING:
    from PIL.Image import Image, Resampling

# Darknet's resize_image: bilinear between the corners of the image, without antialiasing.

Window = tuple[int, int, int, int]

# Rows of the result that are made at a time, and rows of the source that are in memory twice meanwhile.
_BAND_ROWS, _SOURCE_ROWS = 32, 64
#: Pillow has four bytes a pixel of RGB.
_PILLOW_BYTES = 4


class CornerResize:
    """The part ``window`` of ``image`` (RGB) resized to ``size`` (width, height), made row by row.

    Pixel 0 stays on pixel 0 and the last on the last. ``window`` is left, top, right, bottom in pixels of
    the result (half-open, all of it when None); nothing else is computed. Keeps the image.
    """

    def __init__(self, image: "Image", size: Size, window: Window | None = None) -> None:
        left, top, right, bottom = window or (0, 0, *size)
        self._image = image
        self.height, self.width = bottom - top, right - left
        #: How many rows to ask for at once.
        self.band_rows = max(1, min(_BAND_ROWS, _SOURCE_ROWS * size[1] // image.height))
        columns, self._column_parts = _positions(image.width, size[0], left, right)
        self._rows, self._row_parts = _positions(image.height, size[1], top, bottom)
        #: What is held.
        self.n_bytes = image.width * image.height * _PILLOW_BYTES
        self._first, self._last = int(columns[0]), min(int(columns[-1]) + 2, image.width)
        self._columns = columns - self._first

    def rows(self, first: int, end: int) -> NDArray[np.float32]:
        """Return rows [first, end): float32 [rows, columns, 3] from 0 to 255, not rounded."""
        upper = self._rows[first:end]
        lower = np.minimum(upper + 1, self._image.height - 1)
        # Each row of the source is resized once, however many rows of the result lie around it.
        wanted, places = np.unique(np.concatenate([upper, lower]), return_inverse=True)
        across = self._across(wanted)
        above, below = across[places[: len(upper)]], across[places[len(upper) :]]
        below -= above
        below *= self._row_parts[first:end, None, None]
        below += above
        return np.asarray(below, np.float32)

    def _across(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Interpolate ``rows`` of the source between each column and its right neighbour."""
        low, high = int(rows[0]), int(rows[-1]) + 1
        band = self._image.crop((self._first, low, self._last, high))
        pixels = np.asarray(band)[rows - low]
        right = np.minimum(self._columns + 1, pixels.shape[1] - 1)
        near = pixels.take(self._columns, axis=1).astype(np.float32)
        far = pixels.take(right, axis=1).astype(np.float32)
        far -= near
        far *= self._column_parts[:, None]
        far += near
        return np.asarray(far, np.float32)


def _made_bytes(width: int, height: int) -> int:
    """Return what the rows of a result of that size take."""
    return width * height * 3 * np.dtype(np.float32).itemsize


def _band_bytes(old: int, new: int) -> int:
    """Return what making some rows takes, from rows of ``old`` pixels to rows of ``new``."""
    numbers = 3 * new * np.dtype(np.float32).itemsize * (2 * _SOURCE_ROWS + 3 * _BAND_ROWS)
    return (_PILLOW_BYTES + 3) * old * (_SOURCE_ROWS + _BAND_ROWS) + numbers


class ResizedPixels:
    """The rows of a resize that has been made; each is asked for a few times."""

    def __init__(self, resize: CornerResize) -> None:
        self.band_rows = _BAND_ROWS
        self._rows = np.empty((resize.height, resize.width, 3), np.float32)
        self.n_bytes = self._rows.nbytes
        for start in range(0, resize.height, resize.band_rows):
            end = min(start + resize.band_rows, resize.height)
            self._rows[start:end] = resize.rows(start, end)

    def rows(self, first: int, end: int) -> NDArray[np.float32]:
        """Return rows [first, end) of it."""
        return self._rows[first:end].copy()


def _smaller(resize: CornerResize) -> CornerResize | ResizedPixels:
    """Return what takes less: ``resize``, with the image that it is made of, or its rows."""
    made = _made_bytes(resize.width, resize.height)
    return resize if resize.n_bytes <= made else ResizedPixels(resize)


def _positions(
    old: int, new: int, start: int, stop: int
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return source index and fraction towards the next one for the results [start, stop) of ``new``.

    The last result is the last source pixel, also where it is the only one.
    """
    numbers = np.arange(start, stop)
    scale = np.float32(old - 1) / np.float32(max(new - 1, 1))
    exact = numbers.astype(np.float32) * scale
    index = np.minimum(exact.astype(np.intp), max(old - 2, 0))
    index[numbers == new - 1] = old - 1
    part = (exact - index.astype(np.float32)).clip(0, 1)
    part[numbers == new - 1] = 0
    return index, part


# What the manifest says of a photograph, and the tensor that is made of it.


def _not_zero(value: float) -> float:
    if value == 0:
        raise ValueError("zero cannot divide")
    return value


#: Channels of a pixel.
Color = Literal["RGB", "BGR", "GRAY"]
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
    bits, or "darknet": corner-aligned bilinear, neither antialiased nor rounded; there a crop resizes
    the short side first and cuts whole pixels. ``resize_size``: of a crop, what the image is resized to
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
    filter: Literal["nearest", "bilinear", "bicubic", "lanczos", "darknet"] = "bilinear"
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
        if self.resize != "crop" or self.filter == "darknet":
            raise ValueError('resize_size: goes with resize "crop", and not with Darknet\'s filter')
        sides = self.resize_size * (3 - len(self.resize_size))
        if any(side < length for side, length in zip(sides, self.size, strict=True)):
            raise ValueError(
                f"resize_size {list(self.resize_size)}: smaller than {list(self.size)}"
            )

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
            return ImagePlacement.letterboxed(self.size, image, whole)
        if self.resize == "stretch":
            return ImagePlacement()
        if self.filter == "darknet":
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
        source = _PILLOW_BYTES * image[0] * image[1] * (2 if self.color == "GRAY" else 1)
        return min(source, _made_bytes(width, height))

    def work_bytes(self, image: Size) -> int:
        """Return the most that making the ``tensor`` of such an image takes, beside the image itself."""
        width, height = self._made_size(image)
        pixels = image[0] * image[1]
        grey = (1 + _PILLOW_BYTES) * pixels if self.color == "GRAY" else 0
        if self.filter != "darknet":  # Pillow resizes rows, then columns; then its result is copied
            across, result = _PILLOW_BYTES * width * image[1], _PILLOW_BYTES * width * height
            weights = _weights_bytes(_SUPPORTS[self.filter], image, (width, height))
            return grey + weights + result + max(across, _STORED_BYTES * width * height)
        if _PILLOW_BYTES * pixels <= _made_bytes(width, height):
            return grey
        return grey + _made_bytes(width, height) + _band_bytes(image[0], width)

    def sees_all(self, image: Size) -> bool:
        """Return whether an image of that size (width, height) is as large as what is made of it.

        A smaller one of the same picture would be enlarged: the network would see less than it can.
        """
        width, height = self._made_size(image)
        if self.resize_size is not None:
            width, height = resized(self.resize_size, image)
        return image[0] >= width and image[1] >= height

    def _made_size(self, image: Size) -> Size:
        return inside(self.size, image) if self.resize == "letterbox" else self.size

    def apply(self, image: "Image") -> NDArray[np.float32]:
        """Return the whole tensor for ``image``, float32."""
        return np.asarray(self.tensor(image))

    def _placed(self, image: "Image") -> SizedPicture:
        """Return ``image`` (RGB) at the network's size."""
        if self.resize == "stretch":
            return self._resized(image, self.size)
        if self.resize == "crop":
            return self._cut(image)
        inner = inside(self.size, image.size)
        return PaddedPixels(self._resized(image, inner), inner, self.size, self.pad_value)

    def _resized(self, image: "Image", size: Size) -> SizedPicture:
        if self.filter == "darknet":
            return _smaller(CornerResize(image, size))
        return StoredPixels(image.resize(size, _resampling(self.filter)))

    def _cut(self, image: "Image") -> SizedPicture:
        # Neither way makes pixels that are cut off: a thin strip must not grow to the size of a wall.
        width, height = self.size
        if self.filter == "darknet":
            outer = around(self.size, image.size)
            left, top = (outer[0] - width) // 2, (outer[1] - height) // 2
            return _smaller(CornerResize(image, outer, (left, top, left + width, top + height)))
        box = self._box(image.size)
        return StoredPixels(image.resize(self.size, _resampling(self.filter), box))


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
