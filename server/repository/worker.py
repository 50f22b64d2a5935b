"""One model that serves: its line, and what the threads of all models do with its batches.

The event loop itself computes very short answers while nothing runs: handing one over takes longer.

Invariant: every request that was accepted gets a result or an error, also when the worker closes.
"""

import asyncio
import math
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, cast

from numpy.typing import NDArray

from models.text.tokenizer import Tokenizer
from pipeline.execution.answering import Answering
from pipeline.execution.baton import ComputeClaim
from pipeline.execution.errors import DeadlineError
from pipeline.execution.given import Take, Tensors, copies
from pipeline.execution.shielded import run_to_completion
from pipeline.schedule.trace import TraceEvent
from server.errors import DisconnectedError, LateError
from server.faults import Code, Fault
from server.repository.served_engine import ComputedAnswer, Running, ServedEngine
from server.repository.working import EngineChange, Job, Underway, jobs_of
from server.requests.exchange import LeavingClient
from server.requests.waiting import settle, tell
from server.scheduling.agenda import Expected
from server.scheduling.dispatcher import Dispatcher
from server.scheduling.line import Line
from server.scheduling.sweeps import ALONE, Batching, Sweep

T = TypeVar("T")


class Worker:
    """Answers requests with the engine ``running``, ``engine.callers`` sweeps at a time.

    At most ``limit`` requests wait. ``dispatcher``: of all workers on the machine. ``batching``: how
    requests may share sweeps, as far as the plan has lanes. ``tokenizer``: of a model that takes texts; it
    stays when the engine is opened again, and is let go of when the worker is closed.

    Raises:
        RuntimeError: the system gives no thread; ``running`` is the caller's.
    """

    def __init__(
        self,
        running: Running,
        limit: int,
        dispatcher: Dispatcher | None = None,
        batching: Batching = ALONE,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.served = ServedEngine(running)
        self._dispatcher = dispatcher or Dispatcher()
        self._callers = self.engine.callers
        self._batching = batching
        #: What waits to be computed.
        self.line: Line[EngineChange] = self._dispatcher.line(
            self.served.name, limit, self._run, self._callers
        )
        self._follow(running)
        self._underway = Underway()
        #: The shortest time that a request had for its answer.
        self.min_limit_seconds = math.inf
        #: Whether its sweeps are stuck and were given up.
        self.abandoned = False

    @property
    def engine(self) -> Answering:
        return self.served.engine

    @property
    def fault(self) -> Fault | None:
        """Why no request can be answered until the model is loaded again; None as long as some can."""
        return self.served.fault

    def stuck_seconds(self) -> float:
        """How long the oldest request that runs now has been running; 0 when none does."""
        return self._underway.longest_seconds()

    def stuck(self, factor: float, least_seconds: float) -> bool:
        """Return whether a sweep runs ``factor`` times as long as its requests had, and so long at least.

        By then all of them were told that they are late.
        """
        return self._underway.is_stuck(factor, least_seconds)

    def abandon(self, why: str) -> None:
        """Give up the stuck sweeps; requests in line get ``why`` as their error."""
        self.abandoned = True
        self.served.leave(Fault(Code.ENGINE_FAILED, why, permanent=False))
        self.line.close()
        waiting: list[Job | EngineChange] = [*self.line.take_changes()]
        waiting += cast(list[Job], self.line.take_waiting())
        for each in waiting:
            tell(each.future, self.served.out_of_service())
        self._underway.end_claims()
        self.line.abandon()

    def check_room(
        self, seconds: float | None = None, expected: Expected | None = None, is_read: bool = True
    ) -> None:
        """Check that a request that came now would find a place, with so much time to answer it.

        ``expected``, ``is_read``: as Line.check_room.

        Raises:
            BusyError: ``limit`` requests wait already. LateError: it would be late. NotServingError: the
            worker is closing.
        """
        if seconds is None:
            self.line.check_room()
        else:
            self.line.check_room(self._deadline(seconds), expected, is_read)

    def check_deadline(self, seconds: float) -> None:
        """Check that a request with so much time would be let in now; raises as Line.check_deadline."""
        self.line.check_deadline(self._deadline(seconds))

    def expect(self, seconds: float, n_bytes: int) -> Expected:
        """Expect a request that has so many ``seconds``, and whose body of ``n_bytes`` is read now."""
        return self.line.expect(self._deadline(seconds), n_bytes)

    def _deadline(self, seconds: float) -> float:
        """Return by when the inference of a request has to end that has so many ``seconds``."""
        return self._dispatcher.costs.deadline(time.monotonic(), seconds)

    async def infer(
        self, inputs: Tensors, limit_seconds: float
    ) -> ComputedAnswer[dict[str, NDArray[Any]]]:
        """Queue a request and wait for copies of its outputs; as ``answer``."""
        return await self._queued(inputs, limit_seconds, copies, 0, None)

    async def answer(
        self,
        inputs: Tensors,
        limit_seconds: float,
        take: Take[T],
        priority: int,
        client: LeavingClient,
    ) -> ComputedAnswer[T]:
        """Answer a request: at once if that takes very little time, else it waits in line.

        Cancelling this cancels only the work for this request, as does ``client`` when it leaves.
        ``take`` runs on the computing thread; see Engine.answer. ``priority``: as clients
        number it.

        Raises:
            BusyError: the queue is full. LateError: the answer would come too late, or make another one
            late that was let in. NotServingError: the worker is closing. DisconnectedError: the client
            left. DeadlineError: no answer within ``limit_seconds``. Otherwise see Engine.answer.
        """
        self.min_limit_seconds = min(self.min_limit_seconds, limit_seconds)
        if not (self.served.is_quick and self.line.idle):
            return await self._queued(inputs, limit_seconds, take, priority, client)
        # On this thread, the event loop's, while the worker's own sleeps.
        late = self.served.usual_seconds - limit_seconds
        if late > 0:
            raise LateError(f"model {self.served.name!r}: no answer in time", late)
        return self.served.answer(inputs, time.monotonic() + limit_seconds, take)

    async def _queued(
        self,
        inputs: Tensors,
        limit_seconds: float,
        take: Take[T],
        priority: int,
        client: LeavingClient | None,
    ) -> ComputedAnswer[T]:
        """Queue a request of ``client`` and wait for what its future ends with; raises as ``answer``."""
        job = Job.within(limit_seconds, inputs, take, priority, self._deadline(limit_seconds))
        self.line.join(job)
        late = partial(settle, job.future, DeadlineError(f"no answer within {limit_seconds:g} s"))
        timer = job.future.get_loop().call_later(limit_seconds, late)
        try:
            if client is not None:
                client.on_leave(
                    partial(settle, job.future, DisconnectedError("the client went away"))
                )
            answer = await job.future
        except BaseException:
            self.line.leave(job)
            self.engine.wake()
            self._dispatcher.baton.wake()
            raise
        finally:
            timer.cancel()
            if client is not None:
                client.on_leave(None)
            # The error of a future refers to this frame: a circle, which only a collection would free.
            del job, late, timer
        # Called when the loop has run what is ready, and has sent what was written.
        asyncio.get_running_loop().call_soon(self._see_outside, answer.ended_at)
        return answer

    def _see_outside(self, finished_at: float) -> None:
        self._dispatcher.costs.see_outside(time.monotonic() - finished_at)

    async def reopen(self, make: Callable[[], Running], back: Callable[[], Running]) -> None:
        """Close the engine and serve with the one that ``make`` opens, on a thread.

        Requests that run are answered first, those in line wait. After an error ``back`` opens the engine
        that serves; where that fails, too, the model leaves service. Runs to its end even when cancelled.

        Raises:
            NotServingError: the worker is closing, or has a fault. Otherwise the error of ``make``.
        """
        await self._between(partial(self._reopen, make, back))

    async def sleep(self) -> bool:
        """Have the engine give its pages to the system, between requests; return whether it did.

        The next request reads resident weights again. Runs to its end even when cancelled.

        Raises:
            NotServingError: the worker is closing.
        """
        return await self._between(self.served.sleep)

    async def measure(
        self, inputs: Tensors, limit_seconds: float, stopped: Callable[[], bool]
    ) -> float | None:
        """Run a pass that answers no request, while no request runs; return its seconds.

        Return None if other models computed meanwhile, or if ``stopped``, which is called between kernels
        on another thread, returned true. Requests in line wait. If this is cancelled, the pass ends first.

        Raises:
            NotServingError: the worker is closing, or has a fault. Otherwise see Engine.answer.
        """
        cancelled = threading.Event()
        measuring = asyncio.ensure_future(
            self._between(
                partial(
                    self._measure, inputs, limit_seconds, lambda: cancelled.is_set() or stopped()
                )
            )
        )
        try:
            return await asyncio.shield(measuring)
        except asyncio.CancelledError:
            cancelled.set()
            await run_to_completion(asyncio.wait({measuring}))
            if not measuring.cancelled():
                measuring.exception()  # seen, or the loop complains
            raise

    async def _between(self, work: Callable[[], T]) -> T:
        """Return what ``work`` does on a thread, before requests that wait; runs to its end.

        Raises:
            NotServingError: the worker is closing. Otherwise the errors of ``work``.
        """
        change = EngineChange(work, asyncio.get_running_loop().create_future())
        self.line.join_first(change)
        result: T = await run_to_completion(change.future)
        return result

    async def close(self) -> None:
        """Refuse new requests, answer those accepted, close the engine.

        When the worker is ``abandoned``, return at once: what runs does not end, the engine stays open.
        """
        self.line.close()
        await asyncio.to_thread(self._wait_unless_abandoned)

    def wait(self) -> None:
        """Wait until nothing of a closed worker runs any more, and close the engine; blocks."""
        self.line.wait_until_over()
        self._dispatcher.forget(self.line.key)
        self.tokenizer = None
        self.engine.close()

    def _wait_unless_abandoned(self) -> None:
        self.line.wait_until_over(or_abandoned=True)
        if not self.abandoned:
            self.wait()

    def _run(self, what: Sweep | EngineChange) -> None:
        """Compute a batch, or change the engine; on one of the threads of all models."""
        if not isinstance(what, EngineChange):
            self._compute(what)
            return
        try:
            self._change(what)  # nothing else runs: the line sees to that
        finally:
            self.line.made(what)

    def _change(self, change: EngineChange) -> None:
        try:
            result = change.work()
        except Exception as exc:  # noqa: BLE001  who asked for the change gets the error
            tell(change.future, exc)
        else:
            tell(change.future, result)

    def _reopen(self, make: Callable[[], Running], back: Callable[[], Running]) -> None:
        try:
            self.served.reopen(make, back)
        finally:
            self._follow(self.served.running)

    def _measure(
        self, inputs: Tensors, limit_seconds: float, stopped: Callable[[], bool]
    ) -> float | None:
        claim = self._dispatcher.claim(self._callers, self.served.stalls)
        try:
            seconds = self.served.measure(inputs, limit_seconds, stopped, claim)
        finally:
            claim.give()
        return None if claim.waited_seconds else seconds

    def _follow(self, running: Running) -> None:
        """Tell the line how long sweeps of the new engine take, and how many requests one carries."""
        lanes = running.engine.plan.batch_size
        batching = self._batching.within(lanes) if self._callers == 1 else ALONE
        self.line.follow(batching, running.engine.takes_turns)
        self._dispatcher.expect(self.line.key, running.predicted_seconds, running.bound_seconds)

    def _compute(self, sweep: Sweep) -> None:
        """Answer the requests of ``sweep`` except those that have ended already."""
        jobs = [job for job in jobs_of(sweep) if not job.future.done()]
        seconds, late = None, False
        claim = self._dispatcher.claim(self._callers, self.served.stalls)
        began = self._underway.begin(sweep, claim)
        try:
            if jobs:
                seconds, late = self._answer(jobs, began, claim)
        finally:
            self._underway.end(sweep)
            self.line.done(sweep, seconds, late)

    def _answer(
        self, jobs: list[Job], began: float, claim: ComputeClaim
    ) -> tuple[float | None, bool]:
        """Run one sweep for ``jobs``; return its seconds of computing, None if it failed.

        And return whether it was late, that is, was ended when its answers were due.
        """
        events: list[TraceEvent] = []
        record = events.append if self.served.watch is not None and len(jobs) == 1 else None
        waited = [began - job.arrived for job in jobs]
        answers = self.served.sweep([job.lane() for job in jobs], waited, record, claim)
        answered = [answer for answer in answers if isinstance(answer, ComputedAnswer)]
        took = time.monotonic() - began - claim.waited_seconds
        for job, answer in zip(jobs, answers, strict=True):
            tell(job.future, answer)
        if record is not None and answered and not claim.waited_seconds:
            self.served.judge(events, answered[0].statistics.delay_seconds)
        late = not answered and any(map(_is_late, jobs, answers))
        return took if answered or late else None, late


def _is_late(job: Job, answer: object) -> bool:
    """Return whether the time limit of ``job``, which has no answer, ended it.

    The timer of the event loop may fire a little before the limit by the clock of this thread, so the error
    of the future decides, and not the time.
    """
    if isinstance(answer, DeadlineError):
        return True
    future = job.future
    error = future.exception() if future.done() and not future.cancelled() else None
    return isinstance(error, DeadlineError)
