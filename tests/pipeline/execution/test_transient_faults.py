"""A disk of which one read in 200 fails, or comes late, for many inferences, on a virtual clock.

Each ends with the right answer or with an error that names the disk, and the model goes on serving. What an
inference waits for beyond its deadline are reads in flight alone: the disk still writes to their memory.
"""

import errno
import math
import os
import queue
import random
import threading
from collections import Counter, deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from loader.errors import ReadError
from loader.pool.jobs import ReadJob, perform
from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from loader.readers.interface import Filling
from models.packs.pack import Pack, open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.execution import deadlines
from pipeline.execution.engine import Engine
from pipeline.execution.errors import DeadlineError
from pipeline.execution.sweep import Sweeper
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.small import small_pack
from tests.virtual_time import VirtualTime

#: Of reads: how many of one that fails or is late, and how late that is.
ONE_IN, LATE_SECONDS, READ_SECONDS = 200, 2.0, 1e-3
IMAGES = 8
Tensor = NDArray[np.float32]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return open_pack(small_pack(Path(tmp_path_factory.mktemp("repository"))))


class Disk(MemoryReader):
    """Reads take a moment; one in ``ONE_IN`` fails or is late, unless it ``is_sound``."""

    name = "/dev/sda/weights.bin"

    def __init__(self, content: bytes, time: VirtualTime, seed: int) -> None:
        super().__init__(content)
        self.is_sound = True
        self.faults: Counter[str] = Counter()
        #: When a read last ended.
        self.completed_at = 0.0
        self._time = time
        self._random = random.Random(seed)

    def read_into(self, offset: int, target: memoryview) -> None:
        fault = ""
        if not self.is_sound and not self._random.randrange(ONE_IN):
            fault = self._random.choice(["fails", "late"])
            self.faults[fault] += 1
        self._time.sleep(LATE_SECONDS if fault == "late" else READ_SECONDS)
        self.completed_at = self._time.now
        if fault == "fails":
            cause = OSError(errno.EIO, os.strerror(errno.EIO))
            raise Filling(self.name, self.alignment, offset, target).failure(cause) from cause
        super().read_into(offset, target)


class Threads:
    """Read two jobs at once, on threads of ``time``."""

    def __init__(self, time: VirtualTime) -> None:
        self._changed = time.condition(threading.RLock())
        self._jobs: deque[ReadJob] = deque()
        for _ in range(2):
            time.start(self._work)

    def submit(self, job: ReadJob) -> None:
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    self._changed.wait()
                job = self._jobs.popleft()
            outcome = perform(job)
            job.done(outcome.error, outcome.seconds)


def pool_of(time: VirtualTime) -> ReadPool:
    """Return what an engine needs of a pool."""

    def ignored(*_: object) -> None: ...

    submit = Threads(time).submit
    calls = dict.fromkeys(("client", "forget", "raise_priority", "stream"), ignored)
    pool = SimpleNamespace(submit=submit, **calls)
    return cast(ReadPool, pool)


class Ready:
    """A queue.SimpleQueue on the virtual clock."""

    time: VirtualTime

    def __init__(self) -> None:
        self._changed = self.time.condition(threading.RLock())
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def get_nowait(self) -> Any:
        return self.get(0.0)

    def get(self, timeout: float) -> Any:
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._items), timeout):
                raise queue.Empty
            return self._items.popleft()


class Client:
    """Asks for inferences one after the other, with and without a deadline, and checks how each ends."""

    def __init__(self, engine: Engine, disk: Disk, time: VirtualTime, seed: int) -> None:
        self._engine = engine
        self._disk = disk
        self._time = time
        self._random = random.Random(seed)
        self._images = np.random.default_rng(7).standard_normal((IMAGES, 1, 3, 16, 16), np.float32)
        self._expected = [self._infer(image) for image in range(IMAGES)]

    def ask(self, inferences: int) -> Counter[str]:
        """Return how many ended in which way."""
        ends: Counter[str] = Counter()
        for _ in range(inferences):
            self._time.sleep(self._random.choice([0.0, READ_SECONDS / 2, 2 * LATE_SECONDS]))
            limit = self._random.choice([1.0, 5.0, None])
            ends[self._end(self._random.randrange(IMAGES), limit)] += 1
        return ends

    def _end(self, image: int, limit: float | None) -> str:
        """Return how an inference ended."""
        deadline = None if limit is None else self._time.now + limit
        error: Exception | None = None
        try:
            logits = self._infer(image, deadline)
        except (ReadError, DeadlineError) as exc:
            error = exc
        else:
            assert np.array_equal(logits, self._expected[image])
        if deadline is not None and self._time.now > deadline:
            assert error is not None
            assert self._time.now == self._disk.completed_at
        if error is None:
            return "answer"
        assert str(error).startswith(self._disk.name)
        return type(error).__name__

    def _infer(self, image: int, deadline: float | None = None) -> Tensor:
        logits: Tensor = self._engine.run({"image": self._images[image]}, deadline)[0]["logits"]
        return logits


@pytest.mark.parametrize(
    ("ahead", "inferences"),
    [
        ("tail", 300),
        ("idle", 150),
        pytest.param("tail", 10_000, marks=pytest.mark.slow),
        pytest.param("idle", 10_000, marks=pytest.mark.slow),
        pytest.param("never", 10_000, marks=pytest.mark.slow),
    ],
)
def test_transient_faults_cost_their_inferences_and_no_more(
    pack: Pack, monkeypatch: pytest.MonkeyPatch, ahead: Any, inferences: int
) -> None:
    program, time = Program.as_compiled(pack), VirtualTime(random.Random(3).randrange)
    monkeypatch.setattr(Ready, "time", time, raising=False)
    monkeypatch.setattr("pipeline.execution.computing.queue.SimpleQueue", Ready)
    monkeypatch.setattr(deadlines, "time", SimpleNamespace(monotonic=time))
    plan = make_plan(program, ARCHITECTURES["2s"], choice=Choice(128 << 10, ahead=ahead))
    with time:
        disk, pool = Disk(pack.weights_path.read_bytes(), time, seed=5), pool_of(time)
        engine = Engine(program, plan, CpuDevice(1), pool, disk)
        ends: list[Counter[str]] = []

        def ask() -> None:
            engine.open()
            runner = engine._carrier.sweeper
            assert isinstance(runner, Sweeper)
            runner._landed = time.condition(runner._lock)
            client = Client(engine, disk, time, seed=9)
            for disk.is_sound, count in ((False, inferences), (True, IMAGES)):
                ends.append(client.ask(count))
            engine.close()

        time.start(ask)
        time.run_to(math.inf)
    assert engine.broken == ""
    assert ends[1] == {"answer": IMAGES}
    assert ends[0].total() == inferences
    # Some of each, and each fault costs one inference at most: those ahead are read again in time.
    assert disk.faults.keys() == {"fails", "late"}
    assert 0 < ends[0]["ReadError"] <= disk.faults["fails"]
    assert 0 < ends[0]["DeadlineError"] <= disk.faults["late"]
