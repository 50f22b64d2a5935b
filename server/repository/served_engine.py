"""The engine of a model as it is served: its answers, faults that put it out of service, its usual times.

Invariant: an answer is given out only if the file of weights is the same as when it was loaded.
"""

import errno
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from loader.errors import FileChangedError, FileLostError, LoaderError
from loader.readers.interface import Reader
from pipeline.execution.answering import Answering
from pipeline.execution.baton import FREE, ComputeClaim
from pipeline.execution.errors import ArenaLostError, CancelledError, DrainError
from pipeline.execution.given import Arrays, Take, Tensors
from pipeline.execution.lane import Lane
from pipeline.execution.statistics import SweepStatistics
from pipeline.profiles.delay_limits import BoundWatch
from pipeline.schedule.trace import Recorder, TraceEvent
from server.errors import NotServingError
from server.faults import Code, Fault, traceable

_log = logging.getLogger(__name__)

# A sweep without reads that takes less than this runs on the event loop. Reading a body keeps the loop busy
# for as long, and a change to another thread and back takes a tenth to a half of that.
_QUICK_SECONDS = 0.0005
# The usual time is the least of recent sweeps, since a busy machine makes single ones longer. It grows by
# this factor with each sweep, so that a short one is forgotten in time.
_FORGETTING = 1.02
# The part of its time that a sweep waits for weights is averaged over so many sweeps.
_STALLS_OF = 4

# After so many passes of an engine the shortest recent one is what it takes, and not an accident.
_STEADY_PASSES = 32

# Errors of a disk that is not there any more.
_GONE = frozenset({errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ESHUTDOWN, errno.ENOTCONN})

T = TypeVar("T")


class ComputedAnswer(NamedTuple, Generic[T]):
    """What was kept of the outputs, figures of the sweep, and how long the request waited for its turn.

    ``ended_at``: when the sweep ended, on time.monotonic's clock. ``lanes``: how many requests it had.
    """

    outputs: T
    statistics: SweepStatistics
    queue_seconds: float
    ended_at: float = 0.0
    lanes: int = 1


class Running(NamedTuple):
    """An open engine, the reader of its weights, and the watch that compares sweeps with their bound.

    Predicted time and bound are of one sweep, in seconds, where its plan has them.
    """

    engine: Answering
    reader: Reader
    watch: BoundWatch | None = None
    predicted_seconds: float | None = None
    bound_seconds: float | None = None


class ServedEngine:
    """Answers with the engine ``running``, on ``engine.callers`` threads at a time."""

    def __init__(self, running: Running) -> None:
        #: Answered sweeps, their requests, and the seconds that they took beside waiting for others.
        self.sweeps, self.requests, self.sweep_seconds = 0, 0, 0.0
        self._run(running)
        #: The part of its time in which a sweep waits for weights, recently.
        self.stalls = 0.0
        self._counting = threading.Lock()
        #: Why the memory of an engine that could not be opened stays reserved; empty if there is none.
        self._unopened = ""
        #: Why no request can be answered until the model is loaded again; None as long as some can.
        self.fault: Fault | None = None

    def _run(self, running: Running) -> None:
        """Have ``running`` answer from now on."""
        self.running = running
        self.engine = running.engine
        #: What a sweep takes when nothing holds it up, of late.
        self.usual_seconds = math.inf
        #: Answered passes over the weights before this engine.
        self._earlier_passes = self.sweeps
        self._reads_nothing = self.engine.reads_nothing
        # Not where nodes run whose time depends on the data, such as loops: what is usual says nothing. Nor
        # where a sweep may have to wait for those of other models, or is judged.
        has_loops = bool(self.engine.program.pack.manifest.resident_pieces)
        may_wait = self.engine.takes_turns or running.watch is not None
        # What is usual says nothing of requests in other shapes either.
        has_shapes = bool(self.engine.program.others)
        self._may_be_quick = self._reads_nothing and not (has_loops or may_wait or has_shapes)

    @property
    def reader(self) -> Reader:
        return self.running.reader

    @property
    def watch(self) -> BoundWatch | None:
        return self.running.watch

    @property
    def name(self) -> str:
        return self.engine.program.name

    @property
    def lost(self) -> Fault | None:
        """Why memory can never be used again: the disk may still write to it; None: all of it can."""
        reason = self.engine.broken or self._unopened
        return Fault(Code.ENGINE_FAILED, reason) if reason else None

    def out_of_service(self) -> NotServingError:
        return NotServingError(f"model {self.name!r}: {self.fault}")

    @property
    def is_quick(self) -> bool:
        """Whether an answer takes next to nothing, without reads."""
        is_usual = self.usual_seconds < _QUICK_SECONDS and not self.engine.is_asleep
        return self._may_be_quick and is_usual

    @property
    def steady_seconds(self) -> float | None:
        """The shortest recent pass of this engine for requests; None before there were enough."""
        count = self.sweeps - self._earlier_passes
        return self.usual_seconds if count >= _STEADY_PASSES else None

    def sleep(self) -> bool:
        """Give the engine's pages to the system until the next request; return whether it did."""
        if self.fault:
            return False
        is_asleep = self.engine.sleep()
        self._leave_lost()
        return is_asleep

    def measure(
        self,
        inputs: Tensors,
        limit_seconds: float,
        stopped: Callable[[], bool],
        claim: ComputeClaim = FREE,
    ) -> float | None:
        """Run a pass over the weights that answers no request; return its seconds, None if ``stopped``.

        No figure counts it. When this returns, its reads ahead have ended.

        Raises:
            NotServingError: it is out of service. Otherwise see Engine.answer.
        """
        if self.fault:
            raise self.out_of_service()
        deadline = time.monotonic() + limit_seconds
        (outcome,) = self.engine.run_lanes([Lane(inputs, deadline, stopped, _nothing)], claim=claim)
        if isinstance(outcome, CancelledError):
            return None
        if isinstance(outcome, Exception):
            self._judge(outcome)
            raise outcome
        self.engine.settle()
        return outcome[1].delay_seconds

    def answer(self, inputs: Tensors, deadline: float, take: Take[T]) -> ComputedAnswer[T]:
        """Answer one request that has not waited. Raises the errors that ``sweep`` returns."""
        (answer,) = self.sweep([Lane(inputs, deadline, take=take)], [0.0], keeps_core=False)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sweep(
        self,
        lanes: Sequence[Lane],
        waited: Sequence[float],
        record: Recorder | None = None,
        claim: ComputeClaim = FREE,
        *,
        keeps_core: bool = True,
    ) -> list[ComputedAnswer[Any] | Exception]:
        """Run the engine for ``lanes``; return an answer or an error for each.

        A fault that lasts takes the model out of service. ``waited``: for how many seconds the request of
        each lane has waited. Errors are NotServingError: it is out of service; FileChangedError: the file
        of weights has changed since it was loaded; otherwise see Engine.run_lanes.
        """
        if self.fault:
            return [self.out_of_service() for _ in lanes]
        try:
            outcomes = self.engine.run_lanes(lanes, record, claim=claim, keeps_core=keeps_core)
            # Answers and errors count only if the file is the same to the end; a sweep that reads nothing
            # has looked at it when it began.
            if not self._reads_nothing:
                self.reader.check()
        except Exception as exc:  # noqa: BLE001  the thread goes on, and each request gets the error
            outcomes = [exc for _ in lanes]
        answers: list[ComputedAnswer[Any] | Exception] = []
        now = time.monotonic()
        answered, swept = 0, None
        for each, before in zip(outcomes, waited, strict=True):
            if isinstance(each, Exception):
                self._judge(each)
                answers.append(each)
                continue
            outputs, statistics = each
            answered, swept = answered + 1, statistics
            queue_seconds = before + statistics.turn_seconds
            answers.append(ComputedAnswer(outputs, statistics, queue_seconds, now, len(lanes)))
        if swept is not None:
            self._count(answered, swept)
        return answers

    def _count(self, answered: int, statistics: SweepStatistics) -> None:
        """Count a sweep of which so many requests were ``answered``."""
        delay = statistics.delay_seconds
        stalled = min(statistics.stall_seconds / delay, 1.0) if delay > 0 else 0.0
        with self._counting:
            self.sweeps += 1
            self.requests += answered
            self.sweep_seconds += delay
            self.stalls += (stalled - self.stalls) / _STALLS_OF
            self.usual_seconds = min(self.usual_seconds * _FORGETTING, delay)

    def _judge(self, exc: Exception) -> None:
        """Leave service where ``exc`` would meet every later request, too."""
        if self.engine.broken:
            self._leave_lost()
        elif isinstance(exc, FileLostError) or _is_gone(exc):
            self.leave(replace(Fault.of(exc), permanent=False))
        elif isinstance(exc, FileChangedError | ArenaLostError):
            self.leave(replace(Fault.of(exc), permanent=True))

    def leave(self, fault: Fault) -> None:
        """Leave service; answers that other threads have computed still go out."""
        if self.fault is None or fault.message != self.fault.message:
            traceback = fault.cause and traceable(fault.cause)
            _log.error("model %s leaves service: %s", self.name, fault, exc_info=traceback)
        self.fault = fault.settled

    def _leave_lost(self) -> None:
        """Leave service for good where memory is lost."""
        if self.lost is not None:
            self.leave(self.lost)

    def judge(self, events: Sequence[TraceEvent], delay_seconds: float) -> None:
        """Log when a sweep has taken longer than its bound; its answer has gone out by now."""
        if self.watch is None:
            return
        try:
            verdict = self.watch.see(events, delay_seconds)
        except Exception:  # noqa: BLE001  the thread goes on after any error
            _log.exception("model %s: a sweep cannot be judged", self.name)
            return
        if verdict.violation:
            _log.error(
                "model %s: a sweep took %.1f ms, above its bound of %.1f ms",
                self.name,
                delay_seconds * 1e3,
                self.watch.bound_seconds * 1e3,
            )

    def reopen(self, make: Callable[[], Running], back: Callable[[], Running]) -> None:
        """Close the engine and go on with the one that ``make`` opens, or after an error ``back``.

        Where that fails, too, the model leaves service.

        Raises:
            NotServingError: the engine could not be closed. Otherwise the error of ``make``.
        """
        if not self.fault:
            self._close()
        if self.fault:
            raise self.out_of_service()
        try:
            self._open(make)
        except Exception:
            if not self._unopened:
                try:
                    self._open(back)
                except Exception as worse:  # noqa: BLE001  the first error is the reason
                    reason = f"it could not be opened again: {worse}"
                    self.leave(replace(Fault.of(worse), message=reason))
            raise

    def _open(self, make: Callable[[], Running]) -> None:
        try:
            self._run(make())
        except DrainError as exc:  # the disk may still write to what was reserved
            self._unopened = str(exc)
            self._leave_lost()
            raise

    def _close(self) -> None:
        """Close the engine; a read that does not end breaks it."""
        try:
            self.engine.close()
        except Exception as exc:  # noqa: BLE001  later requests get this fault as their error
            reason = f"it could not be closed: {exc}"
            self.leave(replace(Fault.of(exc), message=reason, permanent=True))
        else:
            self._leave_lost()


def _nothing(outputs: Arrays) -> None:
    """Take nothing of the outputs."""


def _is_gone(exc: Exception) -> bool:
    """Return whether the disk is gone under the file that is open; opened anew, it may be there again."""
    cause = exc.__cause__
    return isinstance(exc, LoaderError) and isinstance(cause, OSError) and cause.errno in _GONE
