"""Losses that may pass are tried again, in every mode, whatever step of opening or scanning they struck."""

import errno
import io
import os
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.errors import (
    ChecksumError,
    FileChangedError,
    FileLostError,
    FileReplacedError,
    ReadError,
)
from loader.readers.fakes import MemoryReader
from loader.readers.files import BufferedReader, ReplaceableReader
from models.errors import ModelError, PackError
from pipeline.budget.errors import RefusedError
from pipeline.planning.plan import PlanError
from server.errors import AwayError, NotFoundError, NotServingError
from server.faults import may_come_back, may_pass
from server.repository import retrying
from server.repository.on_disk import is_model, slots
from server.repository.polling import Poller
from server.repository.retrying import Failure, Pauses, Retrier
from tests.examples import over, thinned
from tests.server.conftest import SettingsFactory
from tests.server.support import Packs, ServiceUnderTest, arrays, close, error, inputs_for, serving

TINY = inputs_for("tiny")
MODES = ("none", "explicit", "poll")

# When names are due.


@given(
    tries=st.lists(st.floats(0, 100), max_size=20),
    first=st.floats(0.01, 2),
    maximum=st.floats(2, 60),
)
def test_pauses_grow_up_to_a_limit(tries: list[float], first: float, maximum: float) -> None:
    """Also where a try comes before it is due."""
    now, pauses = 0.0, Pauses(first, maximum)
    failure = Failure.first(now, pauses)
    for count, passed in enumerate(tries):
        assert failure.due == now + failure.pause
        assert failure.pause == pytest.approx(min(first * 2**count, maximum))
        now += passed
        failure = failure.tried(now, pauses, "away")


# What may pass.


def after(exc: Exception, cause: BaseException | None) -> Exception:
    exc.__cause__ = cause
    return exc


def of_system(code: int) -> OSError:
    return OSError(code, os.strerror(code))


#: What file systems, disks and limits say while they are away, fail or are short.
AWAY = (
    *(errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    *(errno.ENODEV, errno.ENXIO, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN, errno.ESHUTDOWN),
    *(errno.ECONNRESET, errno.EBUSY, errno.EREMOTEIO, errno.ENOSPC, errno.EDQUOT, errno.EINTR),
)
ABSENT = errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR


@over("code", AWAY + ABSENT)
def test_what_the_system_says_may_come_back_wherever_it_was_met(code: int) -> None:
    cause = of_system(code)
    for exc in (
        cause,
        after(PackError("x"), cause),
        after(ModelError("x"), after(PackError("x"), cause)),
        after(ReadError("x"), cause),
        after(PlanError("x"), cause),
        after(NotServingError("x"), cause),
    ):
        assert may_come_back(exc), exc


@over(
    "exc",
    (
        *(PackError("truncated"), ModelError("x"), PlanError("x"), RefusedError("no room")),
        *(ChecksumError("damaged"), after(PackError("not JSON"), ValueError("x"))),
        after(RefusedError("x"), ValueError("x")),
    ),
)
def test_what_is_wrong_with_a_pack_does_not_pass(exc: Exception) -> None:
    assert not may_come_back(exc)


def test_what_is_not_there_may_come_back_and_is_no_failure_of_a_command() -> None:
    for exc in (NotFoundError("x"), FileNotFoundError(errno.ENOENT, "x")):
        assert may_come_back(exc)
        assert not may_pass(exc)
    assert may_come_back(MemoryError())
    assert may_come_back(after(PlanError("x"), ChildProcessError("status -9")))


# A file system that says what it likes.


class Flaky:
    """The file system below ``root``: the call ``fails_at`` and all after it fail with ``code``."""

    def __init__(self, root: Path, code: int) -> None:
        self._root = str(root)
        self._code = code
        self.fails_at = 1 << 30
        self.calls = 0

    @contextmanager
    def failing(self, fails_at: int, patched: pytest.MonkeyPatch) -> Iterator[None]:
        self.calls, self.fails_at = 0, fails_at
        with patched.context() as context:
            for owner, name in ((os, "stat"), (os, "listdir"), (os, "scandir"), (os, "open")):
                context.setattr(owner, name, self._wrapped(getattr(owner, name)))
            context.setattr(io, "open", self._wrapped(io.open))
            yield

    def _wrapped(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            if not isinstance(path, int) and str(path).startswith(self._root):
                self.calls += 1
                if self.calls > self.fails_at:
                    raise OSError(self._code, os.strerror(self._code), str(path))
            return real(path, *arguments, **options)

        return call


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class RetryingService:
    """A service on a repository of its own, what tries again by a clock of its own, and what follows it."""

    def __init__(self, service: ServiceUnderTest, packs: Packs, root: Path) -> None:
        self.service, self.packs, self.root = service, packs, root
        self.clock = Clock()
        self.retrier = Retrier(service.inside.repository, Pauses(1, 60), self.clock)
        self.poller: Poller | None = None

    @property
    def entry(self) -> Any:
        return self.service.inside.repository.models["tiny"]

    async def answers(self) -> None:
        close(arrays(await self.service.infer("tiny", TINY)), self.packs.expected("tiny", TINY))

    async def is_lost(self) -> None:
        error(await self.service.infer("tiny", TINY), 503)
        assert self.entry.may_pass

    async def passes(self, seconds: float) -> None:
        """Let time pass, with checks as the service runs them."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now += 1
            await self.retrier.step()
            if self.poller is not None:
                await self.poller.step()


@asynccontextmanager
async def retrying_service(
    mode: str, settings: SettingsFactory, packs: Packs, root: Path, **changes: Any
) -> AsyncIterator[RetryingService]:
    changes = {"models_budget": 16 << 20, "repository": root, "models": ("tiny",), **changes}
    configuration = settings(**changes, model_control=mode, poll_interval=1e6)
    async with serving(configuration) as service:
        result = RetryingService(service, packs, root)
        if mode == "poll":
            result.poller = Poller(service.inside.repository, ("tiny",), result.retrier)
        await result.answers()
        yield result


@pytest.fixture
def repository(packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with "tiny"; no model is tried again but by the test."""
    monkeypatch.setattr(retrying, "_CHECK_SECONDS", 1e6)
    shutil.copytree(packs.repository / "tiny", tmp_path / "packs" / "tiny")
    return tmp_path / "packs"


#: What is away: the repository, a model, a version, a file.
PATHS = ("", "tiny", "tiny/1", "tiny/1/weights.bin", "tiny/1/manifest.json")


@dataclass(frozen=True)
class Away:
    """``what`` is away for so many ``seconds``; ``empty``: in its place is the folder it was mounted on."""

    mode: str
    what: str
    seconds: int
    empty: bool


@pytest.mark.parametrize(
    "case",
    thinned([Away(*values) for values in product(MODES, PATHS, (1, 2, 9), (False, True))], 17),
    ids=str,
)
async def test_what_was_away_serves_again(
    case: Away, settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    mode, what, seconds, empty = astuple(case)
    folder = repository / what
    away = repository.parent / "away"
    async with retrying_service(mode, settings, packs, repository) as service:
        folder.rename(away)
        if empty and away.is_dir():
            folder.mkdir()
        status = (await service.service.infer("tiny", TINY)).status_code
        assert status in {200, 503}
        await service.passes(seconds)
        if folder.exists():
            folder.rmdir()
        away.rename(folder)
        await service.passes(2 * seconds + 4)
        await service.answers()
        assert service.service.inside.budget.held().keys() == {"tiny"}


def leave(repository: Path) -> None:
    repository.rename(repository.with_name("away"))


def come_back(repository: Path) -> None:
    repository.with_name("away").rename(repository)


async def test_a_check_that_sees_it_again_ends_the_pause(
    settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    async with retrying_service("poll", settings, packs, repository) as service:
        assert service.poller is not None
        for folder in (repository, repository / "tiny"):
            folder.rename(repository.with_name("away"))
            await service.is_lost()
            for _ in range(8):
                service.clock.now += 100
                await service.retrier.step()
            await service.poller.step()
            repository.with_name("away").rename(folder)
            await service.poller.step()
            await service.answers()


@pytest.mark.parametrize("mode", thinned(MODES, 3))
async def test_the_pauses_limit_the_tries_of_a_long_loss(
    mode: str, settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    async with retrying_service(mode, settings, packs, repository) as service:
        leave(repository)
        await service.is_lost()
        tried: list[float] = []
        while service.clock.now < 500:
            service.clock.now += 1
            tried += [service.clock.now] * len(await service.retrier.step())
        # The check after the loss, then pauses of 1, 2, ... 32, 60, 60 seconds.
        assert tried[:7] == [2, 4, 8, 16, 32, 64, 124]
        assert len(tried) == 7 + (500 - 124) // 60
        come_back(repository)
        await service.passes(60)
        await service.answers()


@pytest.mark.parametrize("mode", thinned(MODES, 3))
async def test_pauses_grow_from_loss_to_loss_only_where_no_request_was_answered_between(
    mode: str, settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    """No look comes while it serves between two losses."""
    async with retrying_service(mode, settings, packs, repository) as service:
        waits: list[int] = []
        for answers in (False, False, True, True):
            leave(repository)
            error(await service.service.infer("tiny", TINY), 503)
            assert not await service.retrier.step()
            come_back(repository)
            waits.append(0)
            while not service.entry.serves:
                service.clock.now += 1
                waits[-1] += 1
                await service.retrier.step()
            if answers:
                await service.answers()
        assert waits == [1, 2, 4, 1]


@dataclass(frozen=True)
class Steps:
    """The system says ``code`` at one of ``every`` so many calls."""

    mode: str
    code: int
    every: int


_CODES = errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES, errno.ENOENT


@pytest.mark.parametrize(
    "case",
    [
        Steps("explicit", errno.EIO, 29),
        *(
            pytest.param(Steps(mode, code, 1), marks=pytest.mark.slow)
            for mode in MODES
            for code in _CODES
        ),
    ],
    ids=str,
)
async def test_errors_at_each_step_of_a_load_pass(
    case: Steps,
    settings: SettingsFactory,
    packs: Packs,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The load of a lost model, and checks of the folder, fail at each of their calls."""
    mode, code, every = astuple(case)
    flaky = Flaky(repository, code)
    async with retrying_service(mode, settings, packs, repository) as service:
        for fails_at in range(0, 1000, every):
            leave(repository)
            await service.is_lost()
            come_back(repository)
            with flaky.failing(fails_at, monkeypatch):
                await service.passes(3)
            if flaky.calls <= fails_at:
                break
            status = (await service.service.infer("tiny", TINY)).status_code
            assert status in {200, 404, 503}
            await service.passes(12)
            await service.answers()
        assert fails_at > 20
        assert service.service.inside.budget.held().keys() == {"tiny"}


@pytest.mark.parametrize("code", [errno.EIO, pytest.param(errno.ENOENT, marks=pytest.mark.slow)])
async def test_a_model_that_serves_outlives_checks_that_fail(
    code: int,
    settings: SettingsFactory,
    packs: Packs,
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flaky = Flaky(repository, code)
    async with retrying_service("poll", settings, packs, repository) as service:
        for fails_at in range(0, 40, 5):
            with flaky.failing(fails_at, monkeypatch):
                for _ in range(3):
                    await service.poller.step() if service.poller else None
            await service.passes(12)
            await service.answers()


async def test_a_damaged_pack_is_not_tried_before_it_is_another(
    settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    """While its disk was away it was damaged: the reason is the new one."""
    manifest = repository / "tiny" / "1" / "manifest.json"
    complete = manifest.read_bytes()
    async with retrying_service("explicit", settings, packs, repository) as service:
        leave(repository)
        await service.is_lost()
        come_back(repository)
        manifest.write_bytes(complete[:-9])
        await service.passes(4)
        error(await service.service.infer("tiny", TINY), 503, "manifest.json")
        assert not service.entry.may_pass
        service.clock.now += 1000
        assert await service.retrier.step() == []
        manifest.write_bytes(complete)
        assert (
            await service.service.client.post("/v2/repository/models/tiny/load")
        ).status_code == 200
        await service.answers()


@pytest.mark.parametrize("mode", ["none", "explicit"])
async def test_weights_that_are_right_again_serve_again(
    mode: str, settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    """Truncated and written again in place; while they are not whole they are read once for each change."""
    weights = repository / "tiny" / "1" / "weights.bin"
    complete = weights.read_bytes()
    async with retrying_service(mode, settings, packs, repository) as service:
        for damaged in (complete[:-4096], complete[:-4096] + bytes(4096)):
            weights.write_bytes(damaged)
            error(await service.service.infer("tiny", TINY), 503, "weights.bin")
            assert not service.entry.may_pass
            tried = 0
            for _ in range(100):
                service.clock.now += 1
                tried += len(await service.retrier.step())
            assert tried == 1
            error(await service.service.infer("tiny", TINY), 503, "weights.bin")
            weights.write_bytes(complete)
            await service.passes(61)
            await service.answers()
        assert service.service.inside.budget.held().keys() == {"tiny"}


async def test_what_a_client_unloads_while_it_is_lost_stays_so(
    settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    async with retrying_service("explicit", settings, packs, repository) as service:
        leave(repository)
        await service.is_lost()
        await service.passes(3)
        await service.service.client.post("/v2/repository/models/tiny/unload")
        come_back(repository)
        await service.passes(100)
        error(await service.service.infer("tiny", TINY), 404, "unloaded")


async def test_a_model_that_could_not_be_opened_again_comes_back(
    settings: SettingsFactory, packs: Packs, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither with another plan nor with the one before: the disk is away in between."""

    def refuse(path: Path) -> Any:
        raise ReadError(f"{path}: away") from of_system(errno.EIO)

    async with retrying_service("none", settings, packs, repository) as service:
        with monkeypatch.context() as patched:
            patched.setattr("server.repository.environment.open_reader", refuse)
            worker, model_plan = service.entry.worker, service.entry.place
            with suppress(ReadError):
                await service.service.inside.repository._executor.reopen(service.entry, model_plan)
            assert worker.fault
        await service.is_lost()
        await service.passes(3)
        await service.answers()


async def test_clients_make_no_entries_while_the_repository_is_away(
    settings: SettingsFactory, packs: Packs, repository: Path
) -> None:
    async with retrying_service("explicit", settings, packs, repository) as service:
        leave(repository)
        for name in ("a", "b"):
            answer = await service.service.client.post(f"/v2/repository/models/{name}/load")
            error(answer, 503, "repository")
            assert str(repository) not in answer.text
        assert set(service.service.inside.repository.models) == {"tiny"}


# What is cached of a folder that cannot be read.


@over("code", (errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOTCONN))
def test_a_folder_that_cannot_be_read_is_not_treated_as_gone(
    code: int, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Flaky(repository / "tiny", code).failing(0, monkeypatch):
        assert is_model(repository, "tiny")
        with pytest.raises(OSError, match=r"\[Errno"):
            slots(repository, "tiny")
    with pytest.raises(NotFoundError):
        slots(repository, "other")
    with pytest.raises(AwayError, match="no such folder"):
        slots(repository / "none", "tiny")


# Readers of files that went.


def test_a_reader_distinguishes_a_lost_file_from_a_changed_one(tmp_path: Path) -> None:
    file, away = tmp_path / "weights.bin", tmp_path / "away"
    file.write_bytes(bytes(5000))
    reader = ReplaceableReader(BufferedReader(file))
    file.rename(away)
    with pytest.raises(FileLostError):
        reader.check()
    away.rename(file)
    reader.check()
    file.write_bytes(bytes(4000))
    with pytest.raises(FileChangedError) as changed:
        reader.check()
    assert not isinstance(changed.value, FileLostError)
    reader.close()


class Failing(MemoryReader):
    """A reader whose file was ``replaced``, or was not, and which cannot be read."""

    def __init__(self, check: Exception | None) -> None:
        def fail(*_: int) -> None:
            raise ReadError("Input/output error") from of_system(errno.EIO)

        super().__init__(bytes(4096), fail)
        self._check = check

    def check(self) -> None:
        if self._check is not None:
            raise self._check


def test_a_replaced_file_that_cannot_be_read_is_lost() -> None:
    """Its disk was pulled out, and another is mounted there: no later read of it succeeds."""
    for check, kind in (
        (FileReplacedError("another"), FileLostError),
        (None, ReadError),
        (FileChangedError("x"), ReadError),
    ):
        with pytest.raises(ReadError) as failed:
            ReplaceableReader(Failing(check)).read_into(0, memoryview(bytearray(16)))
        assert type(failed.value) is kind
        assert isinstance(failed.value.__cause__, OSError)


# Limits of the system.


async def test_a_system_without_threads_keeps_no_memory(
    settings: SettingsFactory, packs: Packs, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is opened, and what answers cannot be started."""
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith("engine-"):
            raise RuntimeError("can't start new thread")
        real(thread)

    async with retrying_service("none", settings, packs, repository) as service:
        leave(repository)
        await service.is_lost()
        come_back(repository)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", start)
            await service.passes(3)
        error(await service.service.infer("tiny", TINY), 503, "threads")
        assert service.service.inside.budget.held() == {}
        await service.passes(9)
        await service.answers()
