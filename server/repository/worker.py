"""One thread a model: it takes requests from a bounded queue and runs the engine.

Where an answer takes less than handing it over, the event loop runs the engine while the thread is idle.

Invariant: every job that was accepted gets a result or an error, also when the worker closes; an answer
is given out only if the file of the weights is still the one that was loaded.
"""

import asyncio
import errno
import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from numpy.typing import NDArray

from loader.errors import FileChangedError, LoaderError
from loader.readers.reader import Reader
from pipeline.execution.engine import Engine
from pipeline.execution.errors import DeadlineError
from pipeline.execution.given import Take, Tensors, copies
from pipeline.execution.statistics import SweepStatistics
from pipeline.profiles.delay_watch import BoundWatch
from pipeline.schedule.trace import Recorder, TraceEvent
from server.errors import NotServingError
from server.repository.machine_time import MachineTime, Part
from server.repository.uninterrupted import to_its_end
from server.requests.admission import Line

_log = logging.getLogger(__name__)

# A sweep without reads that takes less than this runs on the event loop: no reading of a body holds it
# up for longer, and the change to another thread and back costs a tenth to a half of that.
_QUICK_SECONDS = 0.0005
_QUICK_LIMIT_SECONDS = 1.0
# What is usual is the least of late: a busy machine makes single sweeps longer. It grows with each.
_FORGETTING = 1.02

# What the kernel says of a disk that is not there any more.
_GONE = frozenset({errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ESHUTDOWN})


T = TypeVar("T")


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What was taken of the outputs, what the sweep took, and how long the request waited for its turn."""

    outputs: T
    statistics: SweepStatistics
    queue_seconds: float


@dataclass(eq=False)
class _Job:
    inputs: Tensors
    deadline: float
    take: Take[Any]
    queued_at: float = field(default_factory=time.monotonic)
    cancelled: threading.Event = field(default_factory=threading.Event)
    future: "Future[Answer[Any]]" = field(default_factory=Future)


class Running(NamedTuple):
    """An open engine, what it reads through, and what judges every sweep by the bound on its delay."""

    engine: Engine
    reader: Reader
    watch: BoundWatch | None = None


@dataclass(eq=False)
class _Reopening:
    """Takes a turn as requests do; what ``make`` returns replaces the engine, else what ``back`` does."""

    make: Callable[[], Running]
    back: Callable[[], Running]
    future: "Future[None]" = field(default_factory=Future)


class Worker:
    """Runs ``engine`` for requests, one after the other; at most ``limit`` wait.

    ``reader``: what the engine reads through. ``watch``: judges every sweep by the bound on its delay.
    ``machine_time``: of all workers that share the machine.
    """

    def __init__(
        self,
        engine: Engine,
        limit: int,
        reader: Reader,
        watch: BoundWatch | None = None,
        machine_time: MachineTime | None = None,
    ) -> None:
        self.engine = engine
        self.watch = watch
        #: Answered sweeps, and the seconds of the machine that they had.
        self.sweeps, self.sweep_seconds = 0, 0.0
        self._machine_time = machine_time or MachineTime()
        self._reader = reader
        self._fault = ""
        self._line: Line[_Job | _Reopening] = Line(engine.pack.name, limit)
        self._running_since: float | None = None
        self._usual_seconds = math.inf
        self._has_resident_pieces = bool(engine.pack.manifest.resident_pieces)
        self._thread = threading.Thread(
            target=self._work, name=f"engine-{engine.pack.name}", daemon=True
        )
        self._thread.start()

    @property
    def fault(self) -> str:
        """Why no request can be answered until the model is loaded again; empty as long as some can."""
        return self._fault or self.engine.broken

    @property
    def reader_kind(self) -> str:
        return self._reader.kind

    @property
    def wake_ups(self) -> int:
        """How often the thread woke to look for a request; an idle worker adds none."""
        return self._line.wake_ups

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._line)

    def stuck_seconds(self) -> float:
        """How long the request that runs now has been running; 0 when none does."""
        since = self._running_since
        return 0.0 if since is None else time.monotonic() - since

    def check_room(self) -> None:
        """Check that a request that came now would find a place.

        Raises:
            BusyError: ``limit`` requests wait already.
        """
        self._line.check_room()

    @property
    def is_quick(self) -> bool:
        """Whether ``answer_at_once`` may be called: nobody waits, and an answer takes next to nothing.

        Never where nodes run whose time depends on the data, such as loops: what is usual says nothing. Nor
        where it may have to wait for the sweeps of other models.
        """
        is_short = self._usual_seconds < _QUICK_SECONDS and self.engine.reads_nothing
        is_free = self.watch is None and self._line.idle
        waits = self._has_resident_pieces or self.engine.takes_turns
        return is_short and is_free and not waits

    def answer_at_once(self, inputs: Tensors, take: Take[T]) -> Answer[T]:
        """Compute on this thread, the event loop's, while the worker's own sleeps; as Engine.answer."""
        self._running_since = time.monotonic()
        try:
            return self._answer(inputs, self._running_since + _QUICK_LIMIT_SECONDS, take)
        finally:
            self._running_since = None

    async def infer(self, inputs: Tensors, limit_seconds: float) -> Answer[dict[str, NDArray[Any]]]:
        """Queue a request and wait for copies of its outputs; as ``answer``."""
        return await self.answer(inputs, limit_seconds, copies)

    async def answer(self, inputs: Tensors, limit_seconds: float, take: Take[T]) -> Answer[T]:
        """Queue a request and wait for its answer; cancelling this call cancels only its own work.

        ``take`` runs on the worker's thread; see Engine.answer.

        Raises:
            BusyError: the queue is full. NotServingError: the worker is closing.
            DeadlineError: no answer within ``limit_seconds``. Otherwise see Engine.answer.
        """
        job = _Job(inputs, time.monotonic() + limit_seconds, take)
        self._line.join(job)
        try:
            async with asyncio.timeout(limit_seconds):
                return await asyncio.wrap_future(job.future)
        except TimeoutError:
            raise DeadlineError(f"no answer within {limit_seconds:g} s") from None
        finally:
            job.cancelled.set()
            self._line.leave(job)
            if not job.future.done():
                self.engine.wake()

    async def reopen(self, make: Callable[[], Running], back: Callable[[], Running]) -> None:
        """Close the engine and serve with what ``make`` returns, on the worker's thread.

        The request that runs is answered first, those in line wait. On an error what ``back`` returns
        serves; where that fails, too, the model leaves service. Runs to its end even when cancelled.

        Raises:
            NotServingError: the worker is closing, or has a fault. Otherwise what ``make`` raises.
        """
        job = _Reopening(make, back)
        self._line.join_first(job)
        await to_its_end(_result(job.future))

    async def close(self) -> None:
        """Refuse new requests, answer those accepted, end the thread, close the engine."""
        self._line.close()
        await asyncio.to_thread(self._finish)

    def _finish(self) -> None:
        self._thread.join()
        self.engine.close()

    def _work(self) -> None:
        while (job := self._line.take()) is not None:
            if isinstance(job, _Reopening):
                self._reopen(job)
            else:
                self._compute(job)
            del job  # a request must not live on while the worker waits for the next one

    def _reopen(self, job: _Reopening) -> None:
        if not job.future.set_running_or_notify_cancel():
            return
        if not self.fault:
            self.engine.close()  # drains, and what does not end breaks it
        if self.fault:
            job.future.set_exception(self._out_of_service())
            return
        try:
            self._serve_with(job.make())
        except Exception as exc:  # noqa: BLE001  whoever asked for it hears of it
            try:
                self._serve_with(job.back())
            except Exception as worse:  # noqa: BLE001
                self._fault = f"it could not be opened again: {worse}"
                _log.error("model %s leaves service: %s", self.engine.pack.name, self._fault)
            job.future.set_exception(exc)
        else:
            job.future.set_result(None)

    def _serve_with(self, running: Running) -> None:
        self.engine, self._reader, self.watch = running
        self._usual_seconds = math.inf

    def _compute(self, job: _Job) -> None:
        """Answer ``job``, unless it was cancelled."""
        if not job.future.set_running_or_notify_cancel():
            return
        self._running_since = time.monotonic()
        waited = self._running_since - job.queued_at
        events: list[TraceEvent] = []
        record = events.append if self.watch is not None else None
        try:
            answer = self._answer(
                job.inputs, job.deadline, job.take, job.cancelled.is_set, record, waited
            )
        except Exception as exc:  # noqa: BLE001  the thread outlives every fault of one request
            job.future.set_exception(exc)
        else:
            job.future.set_result(answer)
            self._judge(events, answer.statistics.delay_seconds)
        self._running_since = None

    def _answer(
        self,
        inputs: Tensors,
        deadline: float,
        take: Take[T],
        cancelled: Callable[[], bool] = lambda: False,
        record: Recorder | None = None,
        waited: float = 0.0,
    ) -> Answer[T]:
        """Run the engine, one thread at a time; a fault that lasts takes the model out of service.

        Raises:
            NotServingError: it is. Otherwise see ``_swept``.
        """
        if self.fault:
            raise self._out_of_service()
        try:
            part = self._machine_time.part()
            outputs, statistics = self._swept(inputs, take, deadline, cancelled, record, part)
        except Exception as exc:
            self._fault = self.engine.broken or _lasting(exc)
            if self._fault:
                _log.error("model %s leaves service: %s", self.engine.pack.name, self._fault)
            raise
        self.sweeps += 1
        self.sweep_seconds += part.seconds
        self._usual_seconds = min(self._usual_seconds * _FORGETTING, statistics.delay_seconds)
        return Answer(outputs, statistics, waited + statistics.turn_seconds)

    def _judge(self, events: list[TraceEvent], delay_seconds: float) -> None:
        """Say when a sweep contradicts the analysis of the bound; its answer has gone out by now."""
        if self.watch is None:
            return
        try:
            verdict = self.watch.see(events, delay_seconds)
        except ValueError:
            _log.exception("model %s: a sweep cannot be judged", self.engine.pack.name)
            return
        if verdict.violation:
            _log.error(
                "model %s: a sweep took %.1f ms, above its bound of %.1f ms",
                self.engine.pack.name,
                delay_seconds * 1e3,
                self.watch.bound_seconds * 1e3,
            )

    def _swept(
        self,
        inputs: Tensors,
        take: Take[T],
        deadline: float,
        cancelled: Callable[[], bool],
        record: Recorder | None,
        part: Part,
    ) -> tuple[T, SweepStatistics]:
        """Run the engine; its answer and its errors count only if the file is the same to the end.

        Raises:
            FileChangedError: it is not. Otherwise see Engine.answer.
        """
        try:
            answer = self.engine.answer(inputs, take, deadline, cancelled, record, part)
        except LoaderError:
            self._reader.check()
            raise
        if not self.engine.reads_nothing:
            self._reader.check()
        return answer

    def _out_of_service(self) -> NotServingError:
        return NotServingError(f"model {self.engine.pack.name!r}: {self.fault}")


async def _result(future: "Future[None]") -> None:
    await asyncio.wrap_future(future)


def _lasting(exc: Exception) -> str:
    """Return the message of an error that every later request would meet; empty for others."""
    if isinstance(exc, FileChangedError):
        return str(exc)
    cause = exc.__cause__
    gone = isinstance(exc, LoaderError) and isinstance(cause, OSError) and cause.errno in _GONE
    return str(exc) if gone else ""
