"""Models that clients send: they appear whole or not at all, and no other client notices."""

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiofiles
import pytest

from models.errors import ModelError
from models.packs.folders import versions
from server.errors import InvalidRequestError, ServiceError, SpoolError
from server.protocol import schemas
from server.repository.compiling import Compiler
from server.repository.compiling_child import failures
from server.repository.limited_process import Limits
from server.repository.uploads import Uploads
from tests.examples import over
from tests.server.conftest import SettingsFactory
from tests.server.repository.fake_child import fake_compile
from tests.server.support import (
    LIMIT_SECONDS,
    Connection,
    Packs,
    ServiceUnderTest,
    arrays,
    close,
    error,
    inputs_for,
    serving,
)

TINY = inputs_for("tiny")
UPLOAD = "/v2/repository/models/{}/upload"


@pytest.fixture
def repository(packs: Packs, tmp_path: Path) -> Path:
    for name in ("tiny", "pair"):
        shutil.copytree(packs.repository / name, tmp_path / "packs" / name)
    return tmp_path / "packs"


@pytest.fixture
async def service(settings: SettingsFactory, repository: Path) -> AsyncIterator[ServiceUnderTest]:
    """Compiles with ``fake_compile``."""
    changes = {"models_budget": 64 << 20, "repository": repository, "max_upload": 1 << 20}
    async with serving(settings(**changes)) as started:
        compiler = Compiler("cpu", Limits(1 << 30, 60), fake_compile)
        started.inside.uploads = Uploads(started.inside.repository, compiler)
        yield started


async def send(service: ServiceUnderTest, name: str, text: str, **headers: str) -> Any:
    return await service.client.post(UPLOAD.format(name), content=text, headers=headers)


def copying(packs: Packs, source: str) -> str:
    return f"copy {packs.repository / source / '1'}"


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The events of a stream."""
    found = []
    for block in text.strip().split("\n\n"):
        kind, data = block.split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def nothing_is_left(repository: Path, **expected: list[str]) -> None:
    """Check that the repository has these versions of models, and nothing else."""
    there = {path.name: [each.name for each in versions(path)] for path in repository.iterdir()}
    assert there == expected


async def test_a_new_model_and_the_next_version_of_one(
    service: ServiceUnderTest, packs: Packs, repository: Path
) -> None:
    answer = await send(service, "new", copying(packs, "twin"))
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "name": "new",
        "version": "1",
        "state": "READY",
        "reason": "",
        "warnings": ["new.onnx: a warning"],
    }
    schemas.Placed.model_validate(answer.json())
    close(arrays(await service.infer("new", TINY)), packs.expected("twin", TINY))
    answer = await send(service, "tiny", copying(packs, "twin"))
    assert (answer.json()["version"], answer.json()["state"]) == ("2", "READY")
    close(arrays(await service.infer("tiny", TINY)), packs.expected("twin", TINY))
    nothing_is_left(repository, tiny=["1", "2"], pair=["1"], new=["1"])


async def test_steps_are_told_as_they_begin(service: ServiceUnderTest, packs: Packs) -> None:
    answer = await send(service, "new", copying(packs, "twin"), accept="text/event-stream")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in answer.headers
    *steps, (last, placed) = events(answer.text)
    assert [(kind, said["step"]) for kind, said in steps] == [
        ("step", "wait"),
        ("step", "read"),
        ("step", "load"),
    ]
    assert steps[1][1]["detail"] == "new.onnx"
    assert last == "placed"
    assert placed["state"] == "READY"
    answer = await send(service, "new", "fail model", accept="text/event-stream")
    assert answer.status_code == 200
    last, said = events(answer.text)[-1]
    assert (last, said) == (
        "error",
        {"error": "new.onnx: why not", "code": "invalid_request", "status": 400},
    )


async def test_shapes_that_a_file_leaves_open_come_with_the_request(
    service: ServiceUnderTest, repository: Path
) -> None:
    async def sent(query: str) -> Any:
        return await service.client.post(f"{UPLOAD.format('new')}?{query}", content="fail open")

    given = (await sent("shape=data=1,3,8,8&shape=a%3Db=2")).json()["error"]
    assert "{'data': [1, 3, 8, 8], 'a=b': [2]}" in given
    error(await sent(""), 400, "fix it with the parameter shape=data=1,N")
    for wrong in ("data", "data=1,x", "=1", "data=0", "data=-1"):
        error(await sent(f"shape={wrong}"), 400, "parameter shape", wrong)
    nothing_is_left(repository, tiny=["1"], pair=["1"])


FAILURES: list[tuple[str, int, tuple[str, ...]]] = [
    ("", 400, ("empty",)),
    ("fail model", 400, ("tiny.onnx: why not",)),
    ("fail memory", 413, ("compile_memory",)),
    ("fail disk", 503, ("why not",)),
    ("fail fault", 500, ("why not",)),
    ("slip", 500, ("KeyError: 'a slip'",)),
    (f"die {int(signal.SIGXCPU)}", 413, ("60 s", "compile_time")),
    (f"die {int(signal.SIGKILL)}", 413, ("compile_memory",)),
    (
        f"die {int(signal.SIGTERM)}",
        500,
        ("without a word", "status -15: libgone.so: cannot open shared object file"),
    ),
    ("babble", 500, ("no step",)),
    ("flood", 500, ("no message",)),
    ("nest", 500, ("no message", "nested")),
    ("grow", 413, ("File too large", "compile_memory")),
    ("x" * ((1 << 20) + 1), 413, ("1048576 bytes", "max_upload")),
]


async def test_a_mistake_of_the_program_has_its_traceback_in_the_log(
    service: ServiceUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one in the process that compiles; other errors have none."""
    for text, traced in (("slip", True), ("fail fault", False), ("fail disk", False)):
        caplog.clear()
        await service.client.post(UPLOAD.format("new"), content=text)
        assert ("Traceback" in caplog.text) is traced, text
        assert ('raise KeyError("a slip")' in caplog.text) is traced


async def test_what_fails_changes_nothing(
    service: ServiceUnderTest, packs: Packs, repository: Path
) -> None:
    for text, status, words in FAILURES:
        error(await send(service, "tiny", text), status, *words)
    nothing_is_left(repository, tiny=["1"], pair=["1"])
    close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))


async def test_names_that_no_model_has(service: ServiceUnderTest, repository: Path) -> None:
    for name in ("%2e%2e", ".hidden", "a%2Fb", "x" * 300, "a%00b", "m\u00f6del"):
        answer = await send(service, name, "fail model")
        assert answer.status_code in {400, 404}
    path = "/v2/repository/models/new/upload"
    error(await service.client.post(path, files={"file": b"x"}), 400, "the ONNX file itself")
    nothing_is_left(repository, tiny=["1"], pair=["1"])


async def test_a_name_that_takes_no_versions_is_refused_before_the_file_comes(
    service: ServiceUnderTest, packs: Packs, repository: Path
) -> None:
    """What would be compiled there could never be served."""
    shutil.copytree(packs.repository / "twin" / "1", repository / "bare")
    (repository / "file").write_text("")
    for name, words in (("bare", "bare/1"), ("file", "not a folder")):
        refused = Connection(UPLOAD.format(name), b"", ("host", "127.0.0.1"), more=True)
        async with asyncio.timeout(LIMIT_SECONDS):  # or it waits for the rest of the body
            await refused.call(service.asgi)
        assert refused.status == 409
        assert words in refused.answer.decode()
    (repository / "file").unlink()
    nothing_is_left(repository, tiny=["1"], pair=["1"], bare=[])


async def test_an_empty_repository_takes_its_first_model(
    settings: SettingsFactory, packs: Packs, tmp_path: Path
) -> None:
    root = tmp_path / "empty"
    root.mkdir()
    async with serving(settings(64 << 20, repository=root, models=())) as service:
        compiler = Compiler("cpu", Limits(1 << 30, 60), fake_compile)
        service.inside.uploads = Uploads(service.inside.repository, compiler)
        assert (await service.client.get("/v2/health/ready")).status_code == 503
        assert (await service.client.post("/v2/repository/index")).json() == []
        assert (await send(service, "new", copying(packs, "twin"))).json()["state"] == "READY"
        assert (await service.client.get("/v2/health/ready")).status_code == 200
        close(arrays(await service.infer("new", TINY)), packs.expected("twin", TINY))


async def test_who_may_not_load_may_not_upload(
    settings: SettingsFactory, service: ServiceUnderTest, repository: Path
) -> None:
    error(await send(service, "new", "copy x", forwarded="for=1.2.3.4"), 403)
    async with serving(settings(model_control="none")) as closed:
        error(await send(closed, "new", "copy x"), 403, "model_control")
    nothing_is_left(repository, tiny=["1"], pair=["1"])


async def test_compiling_ends_where_the_system_lacks_memory(
    service: ServiceUnderTest, packs: Packs, repository: Path
) -> None:
    uploads = service.inside.uploads
    assert not uploads.end_compiling()
    sent = asyncio.create_task(send(service, "new", "sleep"))
    await asyncio.to_thread(_waits_for_child, repository)
    assert uploads.end_compiling()
    assert not uploads.end_compiling(), "it ends already"
    answer = await sent
    error(answer, 503, "the system lacks memory")
    assert "retry-after" in answer.headers
    assert not uploads.end_compiling()
    nothing_is_left(repository, tiny=["1"], pair=["1"])
    assert (await send(service, "new", copying(packs, "twin"))).status_code == 200


async def test_one_upload_of_a_name_and_a_client_that_leaves(
    service: ServiceUnderTest, packs: Packs, repository: Path
) -> None:
    going = Connection(UPLOAD.format("new"), b"sleep", ("host", "127.0.0.1"))
    running = asyncio.create_task(going.call(service.asgi))
    process = await asyncio.to_thread(_waits_for_child, repository)
    error(await send(service, "new", copying(packs, "twin")), 409, "another upload")
    waiting = asyncio.create_task(send(service, "other", copying(packs, "twin")))
    going.go_away()
    await running
    assert going.status == 499
    assert (await waiting).status_code == 200
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert (await send(service, "new", copying(packs, "tiny"))).status_code == 200
    nothing_is_left(repository, tiny=["1"], pair=["1"], other=["1"], new=["1"])


async def test_a_client_that_leaves_the_steps_ends_its_upload(
    service: ServiceUnderTest, repository: Path
) -> None:
    headers = (("host", "127.0.0.1"), ("accept", "text/event-stream"))
    going = Connection(UPLOAD.format("new"), b"sleep", *headers)
    running = asyncio.create_task(going.call(service.asgi))
    process = await asyncio.to_thread(_waits_for_child, repository)
    going.go_away()
    await running
    assert going.status == 200
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    nothing_is_left(repository, tiny=["1"], pair=["1"])


def _waits_for_child(repository: Path) -> int:
    """Return the process that compiles "new", once it does."""
    while True:
        for file in repository.glob(".compiling-upload-new-*/new/process"):
            if number := file.read_text():
                return int(number)


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk of the repository is full"),
        (errno.EROFS, "the folder of the repository cannot be written: Read-only file system"),
    ],
)
async def test_a_disk_that_takes_no_more_is_said(
    number: int,
    words: str,
    service: ServiceUnderTest,
    packs: Packs,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(aiofiles, "open", refuse)
        error(await send(service, "new", "copy x"), 503, words)
    with monkeypatch.context() as patch:
        patch.setattr("server.repository.uploads.place", refuse)
        error(await send(service, "new", copying(packs, "twin")), 503, words)
    nothing_is_left(repository, tiny=["1"], pair=["1"])
    assert (await service.infer("tiny", TINY)).status_code == 200


async def test_what_does_not_fit_is_there_and_not_served(
    settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    changes = {"repository": repository, "models_budget": packs.smallest("tiny") + 4096}
    async with serving(settings(models=("tiny",), **changes)) as service:
        compiler = Compiler("cpu", Limits(1 << 30, 60), fake_compile)
        service.inside.uploads = Uploads(service.inside.repository, compiler)
        answer = (await send(service, "new", copying(packs, "pair"))).json()
        assert answer["state"] == "UNAVAILABLE"
        assert "does not fit" in answer["reason"]
        assert answer["version"] == "1"
        assert (await service.infer("tiny", TINY)).status_code == 200


def test_versions_that_others_put_there_are_kept(packs: Packs, tmp_path: Path) -> None:
    from server.repository.uploads import place

    root = tmp_path / "root"
    for number in ("1", "7"):
        (root / "new" / number).mkdir(parents=True)
    made = tmp_path / "made" / "new"
    shutil.copytree(packs.repository / "tiny" / "1", made / "1")
    assert place(made, root) == root / "new" / "8"
    assert (root / "new" / "8" / "manifest.json").exists()


async def test_a_model_whose_folder_is_a_link_to_another_disk_gets_its_next_version(
    service: ServiceUnderTest, packs: Packs, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = repository.parent / "disk"
    disk.mkdir()
    (repository / "tiny").rename(disk / "tiny")
    (repository / "tiny").symlink_to(disk / "tiny")
    rename = Path.rename

    def within_a_disk(path: Path, target: Path) -> Path:
        if path.resolve().is_relative_to(disk) != target.resolve().is_relative_to(disk):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", within_a_disk)
    answer = await send(service, "tiny", copying(packs, "twin"))
    assert (answer.json()["version"], answer.json()["state"]) == ("2", "READY")
    nothing_is_left(repository, tiny=["1", "2"], pair=["1"])
    nothing_is_left(disk, tiny=["1", "2"])


async def test_a_compressed_file_is_refused_as_that(
    service: ServiceUnderTest, repository: Path
) -> None:
    refused = await send(service, "new", "anything", **{"Content-Encoding": "gzip"})
    error(refused, 415, "gzip", "identity")
    nothing_is_left(repository, tiny=["1"], pair=["1"])


@pytest.mark.slow
async def test_a_real_model_is_compiled(
    settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    """The process that compiles, its limits, and what it says of files that are no models."""
    changes = {"models_budget": 64 << 20, "repository": repository}
    async with serving(settings(**changes)) as service:
        source = packs.sources["twin"].read_bytes()
        answer = await service.client.post(UPLOAD.format("tiny"), content=source)
        assert answer.status_code == 200, answer.text
        close(arrays(await service.infer("tiny", TINY)), packs.expected("twin", TINY))
        for damaged in (b"no model", source[: len(source) // 2], source[:-1]):
            refused = await service.client.post(UPLOAD.format("bad"), content=damaged)
            error(refused, 400, "bad.onnx")
        compiler = Compiler("cpu", Limits(96 << 20, 60))
        service.inside.uploads = Uploads(service.inside.repository, compiler)
        refused = await service.client.post(UPLOAD.format("bad"), content=source)
        error(refused, 413, "compile_memory")
        nothing_is_left(repository, tiny=["1", "2"], pair=["1"])


@over(
    "fault, kind",
    [
        (ModelError("the pack fails: pthread_create failed: Cannot allocate memory"), MemoryError),
        (ModelError("no model"), InvalidRequestError),
        (RuntimeError("std::bad_alloc"), MemoryError),
        (RuntimeError("a bug"), ServiceError),
        (OSError(errno.ENOSPC, "No space left on device"), SpoolError),
    ],
)
def test_what_failed_is_told_by_what_was_said(fault: Exception, kind: type[Exception]) -> None:
    with pytest.raises(Exception) as told, failures():  # noqa: PT011
        raise fault
    assert type(told.value) is kind


@pytest.mark.slow
def test_the_process_limits_itself() -> None:
    """It ends after its second, and with the server."""
    endless = "; ".join(
        [
            "import os, sys",
            "from server.repository.limited_process import Limits, limit",
            "limit(Limits(1 << 30, 1), int(sys.argv[1]) or os.getppid())",
            "print('begun', flush=True)",
            "exec('while True: pass')",
        ]
    )
    command = (sys.executable, "-c", endless)
    ended = subprocess.run((*command, "0"), capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGXCPU, b"begun\n")
    orphan = subprocess.run((*command, "1"), capture_output=True, timeout=60, check=False)
    assert (orphan.returncode, orphan.stdout) == (1, b"")
