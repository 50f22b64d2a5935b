"""One thread a model: it takes requests from a bounded queue and runs the engine.

Invariant: every job that was accepted gets a result or an error, also when the worker closes.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from pipeline.engine import Engine
from pipeline.errors import DeadlineError
from pipeline.statistics import SweepStatistics
from server.admission import Line
from server.errors import BusyError


@dataclass(frozen=True)
class Answer:
    """Outputs by name, what the sweep took, and how long the request waited for its turn."""

    outputs: dict[str, NDArray[Any]]
    statistics: SweepStatistics
    queue_seconds: float


@dataclass(eq=False)
class _Job:
    inputs: Mapping[str, NDArray[Any]]
    deadline: float
    queued_at: float = field(default_factory=time.monotonic)
    cancelled: threading.Event = field(default_factory=threading.Event)
    future: "Future[Answer]" = field(default_factory=Future)


class Worker:
    """Runs ``engine`` for requests, one after the other; at most ``limit`` wait."""

    def __init__(self, engine: Engine, limit: int) -> None:
        self.engine = engine
        self._limit = limit
        self._admitted = 0
        self._line: Line[_Job] = Line(engine.pack.name, limit)
        self._running_since: float | None = None
        self._thread = threading.Thread(
            target=self._work, name=f"engine-{engine.pack.name}", daemon=True
        )
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._line)

    def stuck_seconds(self) -> float:
        """How long the request that runs now has been running; 0 when none does."""
        since = self._running_since
        return 0.0 if since is None else time.monotonic() - since

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request from before its body is read: one may run, ``limit`` may wait.

        Raises:
            BusyError: as many are being read, waiting and running already.
        """
        if self._admitted > self._limit:
            raise BusyError(f"model {self.engine.pack.name!r}: {self._limit} requests are waiting")
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    async def infer(self, inputs: Mapping[str, NDArray[Any]], limit_seconds: float) -> Answer:
        """Queue a request and wait for its answer; cancelling this call cancels only its own work.

        Raises:
            BusyError: the queue is full. NotServingError: the worker is closing.
            DeadlineError: no answer within ``limit_seconds``. Otherwise see Engine.run.
        """
        job = _Job(inputs, time.monotonic() + limit_seconds)
        self._line.join(job)
        try:
            async with asyncio.timeout(limit_seconds):
                return await asyncio.wrap_future(job.future)
        except TimeoutError:
            raise DeadlineError(f"no answer within {limit_seconds:g} s") from None
        finally:
            job.cancelled.set()
            self._line.leave(job)

    async def close(self) -> None:
        """Refuse new requests, answer those accepted, end the thread, close the engine."""
        self._line.close()
        await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        self._thread.join()
        self.engine.close()

    def _work(self) -> None:
        while (job := self._line.take()) is not None:
            if job.future.set_running_or_notify_cancel():
                self._running_since = time.monotonic()
                self._run(job)
                self._running_since = None
            del job  # a request must not live on while the worker waits for the next one

    def _run(self, job: _Job) -> None:
        waited = time.monotonic() - job.queued_at
        try:
            outputs, statistics = self.engine.run(job.inputs, job.deadline, job.cancelled.is_set)
        except Exception as exc:  # noqa: BLE001  the thread outlives every fault of one request
            job.future.set_exception(exc)
        else:
            job.future.set_result(Answer(outputs, statistics, waited))
