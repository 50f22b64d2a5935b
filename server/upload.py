"""Uploads: the picture of a request, spooled to a temporary file by aiofiles."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiofiles
import aiofiles.tempfile
from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from server.errors import DisconnectedError, InvalidRequestError

_CHUNK_BYTES = 1 << 16


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
