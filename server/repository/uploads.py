"""From a body to a new version that serves: written to the repository's disk, compiled, placed, loaded.

Invariant: unfinished files lie in one hidden folder, which is locked during the upload and removed at its
end, or at the next start. A name has one upload at a time, and one file is compiled at a time.
"""

import asyncio
import contextlib
import errno
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import aiofiles

from models.atomic_folders import locked_folder
from models.packs.folders import is_model_name, versions
from models.sizes import Lengths, format_size
from pipeline.execution.shielded import run_to_completion
from server.causes import attribution, because
from server.errors import (
    BusyError,
    ConflictError,
    InvalidRequestError,
    ServiceError,
    SpoolError,
    shown,
)
from server.faults import FAILURES, reason_of
from server.repository.compiling import Compiler
from server.repository.compiling_child import UploadStep
from server.repository.repository import Repository
from server.requests.waiting import held

_log = logging.getLogger(__name__)

_TAKEN = (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR)


class Turns(asyncio.Lock):
    """A lock for which ``limit`` requests may wait; ``what``: its name in errors."""

    def __init__(self, what: str, limit: int) -> None:
        super().__init__()
        self._what = what
        self._limit = limit
        self._waiting = 0

    async def acquire(self) -> Literal[True]:
        """Wait for the lock.

        Raises:
            BusyError: too many wait.
        """
        if self._waiting >= self._limit:
            many = "1 request waits" if self._limit == 1 else f"{self._limit} requests wait"
            raise BusyError(f"{many} for {self._what}")
        self._waiting += 1
        try:
            return await super().acquire()
        finally:
            self._waiting -= 1


def folder_for_versions(root: Path, name: str) -> Path:
    """Return where a new version of ``name`` in the repository ``root`` is made; blocks.

    That is in its folder, if it is there: it may be a link to another disk, to which nothing is renamed.

    Raises:
        ConflictError: it could not, because of what has that name in the repository.
    """
    folder = root / name
    if folder.exists() and not folder.is_dir():
        raise ConflictError(f"model {name!r}: {name} in the repository is not a folder")
    if (folder / "manifest.json").exists():
        raise ConflictError(
            f"model {name!r}: {name} is a pack itself, beside which no version is served; move its files "
            f"to {name}/1 and load it, then upload the next version"
        )
    return folder if folder.is_dir() else root


def place(pack_folder: Path, root: Path) -> Path:
    """Move ``pack_folder``, FOLDER/NAME with version 1 in it, into the repository ``root``; blocks.

    Return the folder of the pack there: the next version of NAME, or its first.

    Raises:
        OSError: the disk refuses it.
    """
    folder = root / pack_folder.name
    if not folder.exists() and _moved(pack_folder, folder):
        return folder / "1"
    while True:  # other programs may add versions at the same time
        number = max((int(path.name) for path in versions(folder)), default=0) + 1
        if _moved(pack_folder / "1", folder / str(number)):
            return folder / str(number)


def _moved(source: Path, destination: Path) -> bool:
    """Rename ``source``; return False where the name is taken."""
    try:
        source.rename(destination)
    except OSError as exc:
        if exc.errno in _TAKEN:
            return False
        raise
    descriptor = os.open(destination.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


_LINE = 16
# Of what the process that compiles says, which may be anything once a file has misled it.
_MAX_WARNINGS = 100
_MAX_CHARACTERS = 4096


@dataclass(frozen=True)
class PlacedVersion:
    """A version that is in the repository; ``state`` and ``reason``: whether it serves, and why not."""

    name: str
    version: str
    state: str
    reason: str
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as answers show them."""
        return asdict(self)


class Uploads:
    """Takes uploads for ``repository``, of which ``compiler`` makes packs."""

    def __init__(self, repository: Repository, compiler: Compiler) -> None:
        self._repository = repository
        self._compiler = compiler
        self._underway: dict[str, Upload | None] = {}
        self._turns = Turns("a file to be compiled", _LINE)

    def steps(self) -> dict[str, UploadStep]:
        """Return the step of each upload that is under way, by name."""
        return {name: upload.step for name, upload in self._underway.items() if upload is not None}

    def end_compiling(self) -> bool:
        """End what is compiled, since the system lacks memory; return whether anything was."""
        return self._compiler.end()

    @contextlib.asynccontextmanager
    async def upload(
        self, name: str, shapes: Mapping[str, Lengths] = MappingProxyType({})
    ) -> AsyncIterator["Upload"]:
        """Yield an upload of the model ``name``; at the end only the placed version remains of its files.

        ``shapes``: of inputs, whole, or lengths of dimensions, by name.

        Raises:
            InvalidRequestError: ``name`` cannot be a model's. ConflictError: it is being uploaded already,
            or takes no versions. SpoolError: the repository cannot be written.
        """
        if not is_model_name(name):
            raise InvalidRequestError(
                f"{shown(name)}: not a model name (letters, digits, ._-, at most 100)"
            )
        if name in self._underway:
            raise ConflictError(f"model {name!r}: another upload of it is under way")
        self._underway[name] = None
        stack = contextlib.ExitStack()
        try:
            with _disk():
                parent = await asyncio.to_thread(folder_for_versions, self._repository.root, name)
                hidden = locked_folder(parent, f"upload-{name}")
                folder = await run_to_completion(asyncio.to_thread(stack.enter_context, hidden))
            compiled = self._compiler.compiled(folder / f"{name}.onnx", folder / name, shapes)
            upload = Upload(name, folder, self._repository, compiled, self._turns)
            self._underway[name] = upload
            yield upload
        finally:
            del self._underway[name]
            await run_to_completion(asyncio.to_thread(stack.close))


class Upload:
    """One upload, in its hidden ``folder``; ``compiled``: compiles the file once it has come."""

    def __init__(
        self,
        name: str,
        folder: Path,
        repository: Repository,
        compiled: AsyncGenerator[UploadStep | str],
        turns: Turns,
    ) -> None:
        self._name = name
        self._folder = folder
        self._repository = repository
        self._told_of_compiling = compiled
        self._turns = turns
        self._source = folder / f"{name}.onnx"
        self._warnings: list[str] = []
        self.step = UploadStep("receive")

    async def receive(self, parts: AsyncIterator[bytes]) -> int:
        """Write ``parts`` to the disk; return how many bytes they are.

        Raises:
            SpoolError: the disk takes no more. InvalidRequestError: there are none. Otherwise the errors of
            ``parts``.
        """
        size = 0
        with _disk():
            async with held(aiofiles.open(self._source, "wb"), _close) as file:
                async for part in parts:
                    await file.write(part)
                    size += len(part)
                    self.step = UploadStep("receive", format_size(size))
        if not size:
            raise InvalidRequestError("the body is empty; send an ONNX file")
        return size

    async def make(self) -> AsyncGenerator[UploadStep | PlacedVersion]:
        """Compile the received file, place the pack and load it; yield the steps, then the placed version.

        ``step`` is the last step that was yielded.

        Raises:
            BusyError: too many wait. InvalidRequestError, TooLargeError: it cannot be compiled, or not
            within the limits. SpoolError: the disk is full. ServiceError: a fault of the server.
        """
        yield self._next("wait")
        pack_folder = self._folder / self._name
        async with self._turns, aclosing(self._compiled()) as steps:
            async for step in steps:
                yield step
        with _disk():
            pack = await run_to_completion(
                asyncio.to_thread(place, pack_folder, self._repository.root)
            )
        _log.info(
            "model %s: version %s uploaded", self._name, pack.name, extra=attribution("upload")
        )
        yield self._next("load")
        yield await self._loaded(pack.name)

    async def _compiled(self) -> AsyncGenerator[UploadStep]:
        """Compile the file; yield the steps, and keep the warnings."""
        try:
            async with aclosing(self._told_of_compiling) as told:
                async for each in told:
                    if isinstance(each, UploadStep):
                        yield self._next(each.step, self._public(each.detail))
                    elif len(self._warnings) < _MAX_WARNINGS:
                        self._warnings.append(self._public(each)[:_MAX_CHARACTERS])
        except ServiceError as exc:
            raise type(exc)(self._public(str(exc))[:_MAX_CHARACTERS]) from exc

    def _next(self, step: str, detail: str = "") -> UploadStep:
        self.step = UploadStep(step, detail)
        return self.step

    async def _loaded(self, version: str) -> PlacedVersion:
        """Load the model, and return whether ``version`` serves."""
        reason = ""
        try:
            with because("upload"):
                await self._repository.load(self._name)
        except FAILURES as exc:
            reason = reason_of(exc)
        serves = version in self._repository.models.versions(self._name)
        if not serves and not reason:
            reason = "the version_policy of its config.pbtxt has other versions served"
        state = "READY" if serves else "UNAVAILABLE"
        return PlacedVersion(self._name, version, state, reason, tuple(self._warnings))

    def _public(self, text: str) -> str:
        """Return ``text`` for a client: without the hidden folder, with parameters instead of options."""
        return text.replace(f"{self._folder}/", "").replace("--shape ", "the parameter shape=")


async def _close(file: Any) -> None:
    await file.close()


@contextlib.contextmanager
def _disk() -> Iterator[None]:
    """Turn errors of the repository's disk into one without paths.

    Raises:
        SpoolError: the disk is full, or cannot be written.
    """
    try:
        yield
    except OSError as exc:
        _log.warning("an upload cannot be kept: %s", exc)
        if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise SpoolError("the disk of the repository is full") from exc
        why = exc.strerror or exc
        raise SpoolError(f"the folder of the repository cannot be written: {why}") from exc
