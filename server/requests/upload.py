"""Uploads: the picture of a request, spooled to a temporary file by aiofiles."""

import contextlib
import errno
import logging
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiofiles
import aiofiles.tempfile
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException
from starlette.requests import ClientDisconnect, Request

from server.errors import DisconnectedError, InvalidRequestError, SpoolError
from server.requests.uninterrupted import held

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 16


@contextlib.asynccontextmanager
async def uploaded(request: Request) -> AsyncIterator[Path]:
    """Yield a temporary file with the picture of ``request``: the raw body, or its multipart file.

    Raises:
        InvalidRequestError: an empty body, or a form without a file. SpoolError: no temporary file can
            take it.
        DisconnectedError: the client went away while sending.
    """
    async with contextlib.AsyncExitStack() as stack:
        with _spooling():
            temporary = aiofiles.tempfile.NamedTemporaryFile("wb")
            file = await stack.enter_async_context(held(temporary, _close))
        size = 0
        async for chunk in _chunks(request):
            with _spooling():
                await file.write(chunk)
            size += len(chunk)
        if not size:
            raise InvalidRequestError("the body is empty; send an image")
        with _spooling():
            await file.flush()
        yield Path(str(file.name))


async def _close(file: Any) -> None:
    with contextlib.suppress(OSError):  # of what was not written, and is not wanted any more
        await file.close()


@contextlib.contextmanager
def _spooling() -> Iterator[None]:
    """Turn what the disk says of temporary files into an error without their path.

    Raises:
        SpoolError: it has no room, or refuses them.
    """
    try:
        yield
    except OSError as exc:
        _log.warning("temporary files in %s: %s", tempfile.tempdir, exc.strerror or exc)
        is_full = exc.errno in {errno.ENOSPC, errno.EDQUOT}
        state = "is full" if is_full else "cannot be used"
        raise SpoolError(f"the server's folder for temporary files {state}") from exc


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    try:
        kind = request.headers.get("content-type", "").lower()
        if not kind.startswith("multipart/form-data"):
            async for chunk in request.stream():
                yield chunk
            return
        with _spooling():
            form = await request.form(max_files=1)
        try:
            files = [value for value in form.values() if isinstance(value, UploadFile)]
            if not files:
                raise InvalidRequestError("the form has no file; send the image as one")
            while chunk := await files[0].read(_CHUNK_BYTES):
                yield chunk
        finally:
            await form.close()
    except ClientDisconnect as exc:
        raise DisconnectedError("the client went away while sending") from exc
    except MultiPartException as exc:
        raise InvalidRequestError(f"the form is not multipart/form-data: {exc.message}") from exc
