"""Uploads to a file system that fills, a real one: others notice nothing, and nothing is left behind."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from models.packs.folders import versions
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    LIMIT_SECONDS,
    Packs,
    ServiceUnderTest,
    arrays,
    close,
    error,
    inputs_for,
    serving,
)

pytestmark = [pytest.mark.disk, pytest.mark.slow]

TINY = inputs_for("tiny")
UPLOAD = "/v2/repository/models/new/upload"
_DISK_BYTES = 32 << 20
_BLOCK_BYTES = 32 << 10


def _ran(*command: object) -> None:
    """Run ``command``; skip the test where the system refuses it."""
    try:
        subprocess.run([*map(str, command)], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.CalledProcessError) as exc:
        pytest.skip(f"no file system of its own: {exc}")


@pytest.fixture
def repository(packs: Packs, tmp_path: Path) -> Iterator[Path]:
    """A repository with "tiny" on an ext4 of its own."""
    image, disk = tmp_path / "disk.img", tmp_path / "disk"
    disk.mkdir()
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    _ran("mkfs.ext4", "-q", "-m", "0", image)
    _ran("mount", "-o", "loop", image, disk)
    try:
        shutil.copytree(packs.repository / "tiny", disk / "packs" / "tiny")
        yield disk / "packs"
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=60)


@pytest.fixture
async def service(settings: SettingsFactory, repository: Path) -> AsyncIterator[ServiceUnderTest]:
    changes = {"models_budget": 64 << 20, "repository": repository, "models": ()}
    async with serving(settings(**changes)) as started:
        yield started


def _free_bytes(folder: Path) -> int:
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


@contextlib.contextmanager
def only_free(repository: Path, n_bytes: int) -> Iterator[None]:
    """Fill the disk but for about ``n_bytes``."""
    filler = repository.parent / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while _free_bytes(repository) > n_bytes:  # others write there meanwhile
            file.write(bytes(_BLOCK_BYTES))
    try:
        yield
    finally:
        filler.unlink()


@contextlib.asynccontextmanager
async def others_are_answered(service: ServiceUnderTest, packs: Packs) -> AsyncIterator[None]:
    """Have clients ask all the time; check that each gets the right answer."""
    done, expected = asyncio.Event(), packs.expected("tiny", TINY)

    async def asking() -> int:
        count = 0
        while not done.is_set():
            close(arrays(await service.infer("tiny", TINY)), expected)
            count += 1
            await asyncio.sleep(0)
        return count

    clients = [asyncio.create_task(asking()) for _ in range(2)]
    try:
        yield
    finally:
        done.set()
        counts = await asyncio.gather(*clients)
    assert min(counts) > 0


def _stopped_while_it_compiles(repository: Path) -> int:
    """Return the process that makes the pack of an upload, stopped when it has begun."""
    until = time.monotonic() + LIMIT_SECONDS
    # Its first file is written when it has found space enough.
    while not any(repository.glob(".compiling-*/.compiling-new-*/.work/*")):
        assert time.monotonic() < until
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            parent = f"PPid:\t{os.getpid()}\n" in (file.parent / "status").read_text()
            if parent and b"server.repository.limited_process" in file.read_bytes():
                os.kill(int(file.parent.name), signal.SIGSTOP)
                return int(file.parent.name)
    raise AssertionError("nothing compiles")


def there(repository: Path) -> dict[str, list[str]]:
    """The versions of each folder; those that are hidden, too."""
    return {path.name: [each.name for each in versions(path)] for path in repository.iterdir()}


async def test_a_disk_that_fills_while_a_file_comes_or_is_compiled(
    service: ServiceUnderTest, packs: Packs, repository: Path
) -> None:
    source = packs.sources["twin"].read_bytes()
    for n_bytes, words in (
        (len(source) // 2, "the disk of the repository is full"),
        (len(source) + (64 << 10), "no space to compile new.onnx"),
    ):
        with only_free(repository, n_bytes):
            async with others_are_answered(service, packs):
                error(await service.client.post(UPLOAD, content=source), 503, words)
            assert there(repository) == {"tiny": ["1"]}
    uploading = asyncio.create_task(service.client.post(UPLOAD, content=source))
    compiling = await asyncio.to_thread(_stopped_while_it_compiles, repository)
    with only_free(repository, 0):
        async with others_are_answered(service, packs):
            os.kill(compiling, signal.SIGCONT)
            error(await uploading, 503, "new/1: cannot write the pack: No space left on device")
    assert there(repository) == {"tiny": ["1"]}
    async with others_are_answered(service, packs):
        answer = await service.client.post(UPLOAD, content=source)
    assert answer.json()["state"] == "READY", answer.text
    close(arrays(await service.infer("new", TINY)), packs.expected("twin", TINY))
    assert there(repository) == {"tiny": ["1"], "new": ["1"]}
