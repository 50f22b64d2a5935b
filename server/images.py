"""Pictures that come over HTTP: spooled to a file by aiofiles, opened by Pillow within limits."""

import contextlib
import warnings
from collections.abc import AsyncIterator
from pathlib import Path

import aiofiles
import aiofiles.tempfile
import numpy as np
from fastapi import Request
from PIL import Image, UnidentifiedImageError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from server.errors import DisconnectedError, InvalidRequestError

_CHUNK_BYTES = 1 << 16

# Of all that Pillow opens: what photographs come in. Others run programs (EPS) or are little tested.
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


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
        if not request.headers.get("content-type", "").startswith("multipart/form-data"):
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


def _rgb(image: Image.Image) -> Image.Image:
    """Return ``image`` as RGB; sixteen bits become eight, where Pillow would clip them."""
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image).clip(0, 0xFFFF) >> 8).astype(np.uint8))
    if image.mode == "RGB":
        image.load()
        return image
    return image.convert("RGB")


def decode(path: Path, max_pixels: int) -> Image.Image:
    """Return the picture in ``path`` as RGB, turned as its EXIF orientation says; blocks.

    Raises:
        InvalidRequestError: it is not a picture, is damaged, or has more than ``max_pixels``.
    """
    from PIL import ImageOps

    try:
        with warnings.catch_warnings():
            # Pillow warns at its own limit; ours is checked below, before a pixel is decoded.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path, formats=_FORMATS) as image:
                if image.width * image.height > max_pixels:
                    raise InvalidRequestError(
                        f"the image has {image.width}x{image.height} pixels; "
                        f"the limit is {max_pixels} in all"
                    )
                ImageOps.exif_transpose(image, in_place=True)
                return _rgb(image)
    except InvalidRequestError:
        raise
    except UnidentifiedImageError as exc:
        raise InvalidRequestError("the body is not an image that can be read") from exc
    except Image.DecompressionBombError as exc:
        raise InvalidRequestError(f"the image has too many pixels: {exc}") from exc
    except Exception as exc:  # decoders raise whatever their parsing stumbles over
        raise InvalidRequestError(
            f"the image is damaged: {str(exc) or type(exc).__name__}"
        ) from exc
