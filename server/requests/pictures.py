"""Pictures that come over HTTP, opened by Pillow within limits of pixels and memory."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
from PIL import (
    ExifTags,
    Image,
    ImageFile,
    ImageOps,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)
from PIL.JpegImagePlugin import JpegImageFile

from models.images.placement import Size
from server.errors import InvalidRequestError, TooLargeError
from server.settings.sizes import format_size

# Of all that Pillow opens: what photographs come in. Others run programs (EPS) or are little tested.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

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

# Bytes a pixel as Pillow has it, and as RGB: floats become grey on the way.
_MODE_BYTES = {"RGB": 4, "F": 9}

# EXIF orientations of pictures whose rows are columns.
_LYING = (5, 6, 7, 8)


def _any(size: Size) -> bool:
    return True


def _decoded_bytes(size: Size, pixel_bytes: int) -> int:
    return size[0] * size[1] * pixel_bytes


@dataclass(frozen=True)
class PictureLimits:
    """What one picture may take."""

    max_pixels: int
    max_bytes: int
    #: What a picture of some size takes in all, of which a pixel takes so many bytes while it is decoded.
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
    """Return ``image`` as RGB; sixteen bits become eight, where Pillow would clip them."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 0xFFFF) >> 8).astype(np.uint8))
    if image.mode == "RGB":
        image.load()
        return image
    return image.convert("RGB")


def _bytes_a_pixel(image: ImageFile.ImageFile, orientation: int) -> int:
    """Return the most that a pixel of ``image`` takes while it is decoded and turned.

    Pillow has four bytes a pixel of RGB; what becomes RGB is there twice; a turned picture, too. libjpeg
    holds all coefficients of a progressive file, 16 bits each; libwebp two canvases of its own, and Pillow
    a copy of one; libtiff a strip, which may be all of the picture; what Pillow decodes in Python is there
    as bytes, twice. The file itself is counted where it is received.
    """
    n_bytes = _MODE_BYTES.get(image.mode, 20 if image.mode.startswith("I") else 8)
    if orientation != 1:
        n_bytes += 4
    match image.format:
        case "JPEG" if not _has_one_scan(image):
            n_bytes += 2 * len(image.getbands())
        case "WEBP":
            n_bytes += 12
        case "TIFF" if image.info.get("compression") != "raw":
            n_bytes += max(4, 2 * len(image.getbands()))
        case "PPM" if image.tile and image.tile[0].codec_name != "raw":
            n_bytes += 2 * len(image.getbands())
    return n_bytes


def _orientation(image: ImageFile.ImageFile) -> int:
    """Return how ``image`` is turned, by its header: a PNG's own method would decode it to look behind."""
    found: int = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    return found


def _fitted(
    image: ImageFile.ImageFile, pixel_bytes: int, orientation: int, limits: PictureLimits
) -> int:
    """Return what ``image`` takes in all within ``limits``; a JPEG is decoded smaller if it must be.

    Raises:
        InvalidRequestError: it has too many pixels. TooLargeError: it takes too much memory.
    """
    if image.tile and image.tile[0][0] == "ppm_plain":  # decoded in Python, for seconds
        raise InvalidRequestError("a PPM as text is not taken; send the binary kind")
    size = image.size
    needed = limits.needed_bytes(size, pixel_bytes)
    if not limits.allow(size, needed) and _has_one_scan(image):
        _shrink(image, pixel_bytes, limits, is_lying=orientation in _LYING)
        needed = limits.needed_bytes(image.size, pixel_bytes)
    if image.width * image.height > limits.max_pixels:
        raise InvalidRequestError(
            f"the image has {size[0]}x{size[1]} pixels; the limit is {limits.max_pixels} in all "
            "(setting max_image_pixels)"
        )
    if needed > limits.max_bytes:
        raise TooLargeError(
            f"a request with an image of {size[0]}x{size[1]} pixels takes {format_size(needed)} of "
            f"memory; it may take {format_size(max(limits.max_bytes, 0))} (setting request_memory)"
        )
    return needed


def _shrink(
    image: ImageFile.ImageFile, pixel_bytes: int, limits: PictureLimits, *, is_lying: bool
) -> None:
    """Have a JPEG of one scan decoded at a half, a quarter or an eighth, if it is within ``limits`` then.

    ``is_lying``: its rows are columns of the upright picture.

    libjpeg makes smaller pixels straight from the coefficients, and holds few of those at a time when the
    file has one scan; of a progressive photograph it holds all, so nothing would be saved.
    """
    for scale in (2, 4, 8):
        size = -(-image.width // scale), -(-image.height // scale)
        if not limits.may_become(size[::-1] if is_lying else size):
            return
        if limits.allow(size, limits.needed_bytes(size, pixel_bytes)):
            image.draft(None, (max(image.width // scale, 1), max(image.height // scale, 1)))
            return


def _has_one_scan(image: ImageFile.ImageFile) -> bool:
    """Return whether the scan up to whose header Pillow read has all components of a JPEG."""
    if not isinstance(image, JpegImageFile) or "progressive" in image.info or image.fp is None:
        return False
    n_components = len(image.getbands())
    length = 6 + 2 * n_components
    position = image.fp.tell()
    image.fp.seek(max(0, position - length - 2))
    header = image.fp.read(5)
    image.fp.seek(position)
    return header == bytes((0xFF, 0xDA, 0, length, n_components))


def decode(source: Path | BinaryIO, limits: PictureLimits) -> Photograph:
    """Return the picture in ``source``, turned as its EXIF orientation says; blocks.

    Raises:
        InvalidRequestError: it is not a picture, is damaged, or has more pixels than ``limits`` allow.
        TooLargeError: decoding it would take more memory than they do.
    """
    with source.open("rb") if isinstance(source, Path) else source as file:
        return OpenedPicture(file, limits).decode()


class OpenedPicture:
    """A picture of which the header was read, in a ``file`` that is closed once it is decoded; blocks.

    What is behind the header may come later.
    """

    @classmethod
    def begun(cls, file: BinaryIO, limits: PictureLimits) -> Self | None:
        """Return what opens of a beginning; None: the header does not end there, or it is no picture.

        Raises:
            InvalidRequestError, TooLargeError: it is over ``limits``.
        """
        try:
            return cls(file, limits)
        except InvalidRequestError as exc:
            if exc.__cause__ is None:
                raise
            return None  # of which its decoder has found something wrong: the end, perhaps

    def __init__(self, file: BinaryIO, limits: PictureLimits) -> None:
        """Read the header; raises as ``decode``."""
        file.seek(0)
        self._file, self._limits = file, limits
        try:
            image = self._image = Image.open(file, formats=_FORMATS)
            self._size, self._orientation = image.size, _orientation(image)
            pixel_bytes = _bytes_a_pixel(image, self._orientation)
            #: What the picture takes in all.
            self.needed_bytes = _fitted(image, pixel_bytes, self._orientation, limits)
        except _OURS:
            raise
        except Exception as exc:
            raise _refusal(exc, limits) from exc

    def decode(self) -> Photograph:
        """Return the picture, once; raises as the function."""
        image, size = self._image, self._size
        del self._image  # what is left of this has no pixels
        is_whole = image.size == size
        if self._orientation in _LYING:
            size = size[1], size[0]
        try:
            if self._orientation != 1:
                ImageOps.exif_transpose(image, in_place=True)
            rgb = _rgb(image)
        except Exception as exc:
            raise _refusal(exc, self._limits) from exc
        self._file.close()  # the pixels may be kept with what knows it
        return Photograph(rgb, rgb.size if is_whole else size)


def _refusal(exc: Exception, limits: PictureLimits) -> InvalidRequestError:
    """Return what a client is told of ``exc``: decoders raise whatever their parsing stumbles over."""
    if isinstance(exc, UnidentifiedImageError):
        return InvalidRequestError("not an image that can be read")
    if isinstance(exc, Image.DecompressionBombError):
        return InvalidRequestError(
            f"the image has too many pixels; the limit is {limits.max_pixels} in all "
            "(setting max_image_pixels)"
        )
    return InvalidRequestError(f"the image is damaged: {str(exc) or type(exc).__name__}")
