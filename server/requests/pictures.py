"""Pictures that come over HTTP: their containers are read, then Pillow decodes them, within limits.

Pillow sees a file only when what it takes is known from the container (models/images/containers) and held.
"""

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self, cast

import numpy as np
from PIL import Image, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin

from models.images.containers import read_container
from models.images.containers.source import (
    Container,
    ContainerError,
    DecoderView,
    EndError,
    PictureSource,
    ViewFile,
)
from models.images.placement import Size
from models.sizes import format_size
from server.errors import InvalidRequestError, TooLargeError

# What reads them is here from the start. Else the first file that is neither JPEG nor PNG, or is broken,
# would have Pillow import all that it has: 50 modules, of the memory of requests.
Image.preinit()
_OTHERS = (TiffImagePlugin, WebPImagePlugin)

# Pillow warns of sizes and of odd files, on standard error, where logs of one format are written; the size
# is checked before a pixel is decoded. The filter is one for all threads: ``catch_warnings`` around each
# picture would put back what another thread has set.
warnings.filterwarnings("ignore", module=r"PIL\.")
# Errors that say already what the client did.
_OURS = InvalidRequestError, TooLargeError

# EXIF orientations of pictures whose rows are columns, and what makes each upright.
_LYING = (5, 6, 7, 8)
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# A turned picture is there twice, of up to so many bytes a pixel.
_TURNED_BYTES = 4
# Pillow has a pointer to each row, of up to three pictures at a time.
_ROW_BYTES = 3 * 8
# What every decoder takes in addition to pixels: tables, rows. The margin of the process has room for it.
_USUAL_WORK_BYTES = 128 << 10
# Rows that are compared at a time.
_BAND_ROWS = 64


def _any(size: Size) -> bool:
    return True


def _decoded_bytes(size: Size, decoding_bytes: int) -> int:
    return decoding_bytes


@dataclass(frozen=True)
class PictureLimits:
    """What one picture may take."""

    max_pixels: int
    max_bytes: int
    #: What a picture of some size takes in all, which takes so many bytes while it is decoded.
    needed_bytes: Callable[[Size, int], int] = _decoded_bytes
    #: Whether a picture that is larger may be decoded at this size, upright.
    may_become: Callable[[Size], bool] = _any

    def allow(self, size: Size, n_bytes: int) -> bool:
        """Return whether a picture of ``size`` that takes ``n_bytes`` in all is within them."""
        return size[0] * size[1] <= self.max_pixels and n_bytes <= self.max_bytes


@dataclass(frozen=True)
class Photograph:
    """A picture as RGB, upright; ``size`` is what it has in its file, where ``image`` may have less."""

    image: Image.Image
    size: Size


def _rgb(image: Image.Image) -> Image.Image:
    """Return ``image`` as RGB; sixteen bits, and floats, become eight, where Pillow would clip."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 0xFFFF) >> 8).astype(np.uint8))
    if image.mode == "F":
        image = _grey(image)
    if image.mode == "RGB":
        image.load()
        return image
    return image.convert("RGB")


def _grey(image: Image.Image) -> Image.Image:
    """Return ``image``, of floats, in 256 shades: white is 255, or 1 where no pixel is more."""
    highest = image.getextrema()[1]
    white = 1.0 if isinstance(highest, float) and highest <= 1 else 255.0
    grey = Image.new("L", image.size)
    for top in range(0, image.height, _BAND_ROWS):
        band = image.crop((0, top, image.width, min(top + _BAND_ROWS, image.height)))
        shades = np.nan_to_num(np.asarray(band) * (255 / white)).clip(0, 255)
        grey.paste(Image.fromarray(shades.astype(np.uint8)), (0, top))
    return grey


def _decoding_bytes(container: Container, size: Size) -> int:
    """Return what decoding the picture at ``size`` takes, in addition to the file."""
    turned = _TURNED_BYTES if container.orientation in _TRANSPOSITIONS else 0
    work = container.work_bytes + _ROW_BYTES * max(size)
    return size[0] * size[1] * (container.pixel_bytes + turned) + max(work - _USUAL_WORK_BYTES, 0)


def _needed(container: Container, scale: int, limits: PictureLimits) -> tuple[Size, int]:
    """Return the size of the picture at one ``scale``-th of its own, and what it takes in all."""
    size = -(-container.size[0] // scale), -(-container.size[1] // scale)
    return size, limits.needed_bytes(size, _decoding_bytes(container, size))


def _fitted(container: Container, limits: PictureLimits) -> tuple[int, int]:
    """Return the scale at which the picture is decoded within ``limits``, and what it takes in all.

    Raises:
        InvalidRequestError: it has too many pixels. TooLargeError: it takes too much memory.
    """
    size, needed = _needed(container, 1, limits)
    if limits.allow(size, needed):
        return 1, needed
    if container.shrinks and (shrunk := _shrunk(container, limits)):
        return shrunk
    if size[0] * size[1] > limits.max_pixels:
        raise InvalidRequestError(
            f"the image has {size[0]}x{size[1]} pixels; the limit is {limits.max_pixels} in all "
            "(setting max_image_pixels)"
        )
    raise TooLargeError(
        f"a request with an image of {size[0]}x{size[1]} pixels takes {format_size(needed)} of "
        f"memory; it may take {format_size(max(limits.max_bytes, 0))} (setting request_memory)"
    )


def _shrunk(container: Container, limits: PictureLimits) -> tuple[int, int] | None:
    """Return the largest of a half, a quarter and an eighth that is within ``limits``, as ``_fitted``.

    libjpeg makes smaller pixels straight from the coefficients, and holds few of those at a time when the
    file has one scan; of a progressive photograph it holds all, so nothing would be saved.
    """
    for scale in (2, 4, 8):
        size, needed = _needed(container, scale, limits)
        if not limits.may_become(size[::-1] if container.orientation in _LYING else size):
            return None
        if min(container.size) >= scale and limits.allow(size, needed):
            return scale, needed
    return None


def decode(source: Path | BinaryIO, limits: PictureLimits) -> Photograph:
    """Return the picture in ``source``, turned as its EXIF orientation says; blocks.

    Raises:
        InvalidRequestError: it is not a picture, is damaged, or has more pixels than ``limits`` allow.
        TooLargeError: decoding it would take more memory than they do.
    """
    with source.open("rb") if isinstance(source, Path) else source as file:
        return OpenedPicture(file, limits).decode()


class OpenedPicture:
    """A picture of which the container was read, in a ``file`` that is closed once it is decoded; blocks.

    What is behind the header may come later.
    """

    @classmethod
    def begun(cls, file: BinaryIO, limits: PictureLimits) -> Self | None:
        """Return what opens of a beginning; None: the header does not end there, or it is no picture.

        Raises:
            InvalidRequestError, TooLargeError: it is over ``limits``.
        """
        try:
            return cls(file, limits, is_whole=False)
        except InvalidRequestError as exc:
            if exc.__cause__ is None:
                raise
            return None  # of which its reader has found something wrong: the end, perhaps

    def __init__(self, file: BinaryIO, limits: PictureLimits, *, is_whole: bool = True) -> None:
        """Read the header; raises as ``decode``. ``is_whole``: whether all of the file is there."""
        self._file, self._limits = file, limits
        try:
            container = read_container(PictureSource(file, is_complete=is_whole))
            if container is None:
                raise UnidentifiedImageError
            if 0 in container.size:
                raise ContainerError("no pixels")
            self._container = container
            #: What the picture takes in all.
            self._scale, self.needed_bytes = _fitted(container, limits)
        except _OURS:
            raise
        except Exception as exc:
            raise _refusal(exc, limits) from exc

    def decode(self) -> Photograph:
        """Return the picture, once; raises as the function."""
        container = self._container
        size = container.size[::-1] if container.orientation in _LYING else container.size
        try:
            image = self._pixels()
            if (transposition := _TRANSPOSITIONS.get(container.orientation)) is not None:
                image = image.transpose(transposition)
            rgb = _rgb(image)
        except Exception as exc:
            raise _refusal(exc, self._limits) from exc
        self._file.close()  # the pixels may be kept with what knows it
        return Photograph(rgb, size)

    def _pixels(self) -> Image.Image:
        """Return the picture as it is stored.

        Raises:
            ContainerError: it is damaged, also where views of it are not the same. Anything of Pillow's.
        """
        source = PictureSource(self._file)
        *others, last = self._container.views(source)
        digests = {_digest(self._opened(source, view)) for view in others}
        image = self._opened(source, last)
        if digests and digests != {_digest(image)}:
            raise EndError("image file is truncated")
        return image

    def _opened(self, source: PictureSource, view: DecoderView) -> Image.Image:
        """Return the picture of one ``view``, decoded; raises what Pillow does."""
        container, file = self._container, cast("BinaryIO", ViewFile(source, view))
        image = Image.open(file, formats=(container.kind,))
        if image.size != container.size:
            raise ContainerError("its size is another than its header says")
        if self._scale > 1:
            image.draft(None, (container.size[0] // self._scale, container.size[1] // self._scale))
        image.load()
        return image


def _digest(image: Image.Image) -> bytes:
    """Return a digest of the pixels of ``image``."""
    digest = hashlib.blake2b()
    for top in range(0, image.height, _BAND_ROWS):
        bottom = min(top + _BAND_ROWS, image.height)
        digest.update(image.crop((0, top, image.width, bottom)).tobytes())
    return digest.digest()


def _refusal(exc: Exception, limits: PictureLimits) -> InvalidRequestError:
    """Return what a client is told of ``exc``: decoders raise whatever their parsing stumbles over."""
    if isinstance(exc, UnidentifiedImageError):
        return InvalidRequestError("not an image that can be read")
    if isinstance(exc, Image.DecompressionBombError):
        return InvalidRequestError(
            f"the image has too many pixels; the limit is {limits.max_pixels} in all "
            "(setting max_image_pixels)"
        )
    if isinstance(exc, ContainerError) and not isinstance(exc, EndError):
        return InvalidRequestError(f"the image cannot be read: {exc}")
    return InvalidRequestError(f"the image is damaged: {str(exc) or type(exc).__name__}")
