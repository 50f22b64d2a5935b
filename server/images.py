"""Pictures that come over HTTP: spooled to a file by aiofiles, opened by Pillow within limits."""

import contextlib
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiofiles
import aiofiles.tempfile
import numpy as np
from fastapi import Request
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from models.placement import Size
from server.errors import DisconnectedError, InvalidRequestError

_CHUNK_BYTES = 1 << 16

# Of all that Pillow opens: what photographs come in. Others run programs (EPS) or are little tested.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

# EXIF orientations of pictures whose rows are columns.
_LYING = (5, 6, 7, 8)


@contextlib.asynccontextmanager
async def uploaded(request: Request) -> AsyncIterator[Path]:
    """Yield a temporary file with the picture of ``request``: the raw body, or its multipart file.

    Raises:
        InvalidRequestError: an empty body, or a form without a file.
        DisconnectedError: the client went away while sending.
    """
    async with aiofiles.tempfile.NamedTemporaryFile("wb") as file:
        size = 0
        async for chunk in _chunks(request):
            await file.write(chunk)
            size += len(chunk)
        if not size:
            raise InvalidRequestError("the body is empty; send an image")
        await file.flush()
        yield Path(str(file.name))


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        kind = request.headers.get("content-type", "").lower()
        if not kind.startswith("multipart/form-data"):
            async for chunk in request.stream():
                yield chunk
            return
        async with request.form(max_files=1) as form:
            files = [value for value in form.values() if isinstance(value, UploadFile)]
            if not files:
                raise InvalidRequestError("the form has no file; send the image as one")
            while chunk := await files[0].read(_CHUNK_BYTES):
                yield chunk
    except ClientDisconnect as exc:
        raise DisconnectedError("the client went away while sending") from exc
    except HTTPException as exc:  # what Starlette makes of a form that it cannot read
        raise InvalidRequestError(f"the form is not multipart/form-data: {exc.detail}") from exc


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


def _shrink(image: ImageFile.ImageFile, max_pixels: int) -> None:
    """Have a JPEG of more than ``max_pixels`` decoded at a half or a quarter of its size, if that helps.

    libjpeg makes smaller pixels straight from the coefficients, and holds few of those at a time when the
    file has one scan; of a progressive photograph it holds all, so nothing would be saved.
    """
    width, height = image.size
    if width * height <= max_pixels or not _has_one_scan(image):
        return
    for scale in (2, 4):
        if -(-width // scale) * -(-height // scale) <= max_pixels:
            image.draft(None, (width // scale, height // scale))
            return


def _has_one_scan(image: ImageFile.ImageFile) -> bool:
    """Return whether the scan up to whose header Pillow read has all components of a JPEG."""
    if not isinstance(image, JpegImageFile) or "progressive" in image.info or image.fp is None:
        return False
    length = 6 + 2 * image.layers
    image.fp.seek(max(0, image.fp.tell() - length - 2))
    return image.fp.read(5) == bytes((0xFF, 0xDA, 0, length, image.layers))


def decode(path: Path, max_pixels: int) -> Photograph:
    """Return the picture in ``path``, turned as its EXIF orientation says; blocks.

    Raises:
        InvalidRequestError: it is not a picture, is damaged, or more than ``max_pixels`` would be decoded.
    """
    try:
        with warnings.catch_warnings():
            # Pillow warns of sizes and of odd files, on standard error, where logs of one format are
            # written; the size is checked below, before a pixel is decoded.
            warnings.simplefilter("ignore")
            with Image.open(path, formats=_FORMATS) as image:
                return _decoded(image, max_pixels)
    except InvalidRequestError:
        raise
    except UnidentifiedImageError as exc:
        raise InvalidRequestError("not an image that can be read") from exc
    except Image.DecompressionBombError as exc:
        raise InvalidRequestError(f"the image has too many pixels: {exc}") from exc
    except Exception as exc:  # decoders raise whatever their parsing stumbles over
        raise InvalidRequestError(
            f"the image is damaged: {str(exc) or type(exc).__name__}"
        ) from exc


def _decoded(image: ImageFile.ImageFile, max_pixels: int) -> Photograph:
    size = image.size
    _shrink(image, max_pixels)
    is_whole = image.size == size
    if image.width * image.height > max_pixels:
        raise InvalidRequestError(
            f"the image has {size[0]}x{size[1]} pixels; the limit is {max_pixels} in all"
        )
    if image.getexif().get(ExifTags.Base.Orientation) in _LYING:
        size = size[1], size[0]
    ImageOps.exif_transpose(image, in_place=True)
    rgb = _rgb(image)
    return Photograph(rgb, rgb.size if is_whole else size)
