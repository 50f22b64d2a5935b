"""A request to a model, from finding the model to the answer: what infer, classify and detect share."""

import asyncio
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self, TypeVar

from numpy.typing import NDArray

from models.packs.manifest import Manifest
from models.packs.pack import Pack
from models.runtime.heap import LARGE_BYTES
from pipeline.budget.request_needs import (
    CODEC_BYTES,
    RAW_ANSWER_BYTES,
    SHORT_CODEC_BYTES,
    SMALL_BYTES,
)
from pipeline.execution.errors import DeadlineError
from pipeline.execution.given import Arrays
from server.codec.messages import ModelRequest
from server.errors import LateError
from server.faults import outcome_of
from server.metrics.requests import Passage
from server.repository.entry import Use
from server.repository.worker import Worker
from server.requests.exchange import ClientOfSeveral, Exchange, LeavingClient, TimeLimit
from server.service import Service

A = TypeVar("A")

# A request may wait for memory for this part of the time that is left to it; then it is read, waits for
# others, and is computed.
_MEMORY_OF_TIME = 0.3
# The pace of a body counts once this part of the time has passed: its first parts say nothing of it. A
# refusal after that is late.
_EARLY_OF_TIME = 0.2
_PASSED = "its timeout of {:g} s passed while the request came, or waited for memory"


class Kept(NamedTuple, Generic[A]):
    """What a request keeps of the outputs, and the bytes of that; ``is_raw``: they are sent as they are."""

    what: A
    n_bytes: int
    is_raw: bool = False


def array_bytes(array: NDArray[Any]) -> int:
    """Return what ``array`` takes, with the characters of strings."""
    return array.nbytes + (sum(map(len, array.flat)) if array.dtype.kind == "O" else 0)


class Inference:
    """A request of the client of ``exchange`` to model ``name``; its outcome is counted.

    Use it as a context: the model stays loaded inside. Reading and computing may each take the time limit;
    a timeout of the client or of the model counts from the first byte of the request. An evicted model is
    loaded again, which evicts another, only after the request was read and found right; ``pack`` is the one
    on disk until then.
    """

    use: Use

    def __init__(
        self, service: Service, exchange: Exchange, name: str, version: str | None
    ) -> None:
        self.service, self.exchange = service, exchange
        self.name, self._version = name, version
        self._limit = service.settings.request_timeout
        #: Of all inferences that it takes: decoding its inputs, waiting in line, computing.
        self._decoding_seconds, self._queue_seconds, self._infer_seconds = 0.0, 0.0, 0.0
        self._batch_size = 0
        self._encodes_since = 0.0
        # Whether it was checked while its body came, and the timeout in it.
        self._was_checked = False
        self._timeout_seconds: float | None = None

    async def __aenter__(self) -> Self:
        """Find the model; raises as Repository.find."""
        self.use = await self.service.repository.find(self.name, self._version, self._limit)
        return self

    @property
    def pack(self) -> Pack:
        return self.use.pack

    @property
    def manifest(self) -> Manifest:
        return self.use.pack.manifest

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Count the request, and let the model go."""
        seconds = time.monotonic() - self.exchange.arrived_at
        outcome, passage = outcome_of(error), None
        if error is None and self._batch_size:
            passage = Passage(
                queue=self._queue_seconds,
                compute_input=self._decoding_seconds,
                compute_infer=self._infer_seconds,
                compute_output=time.perf_counter() - self._encodes_since,
                lanes=self._batch_size,
            )
        self.service.metrics.requests.end(self.name, self.pack.version, outcome, seconds, passage)
        self._came()
        self._note_refusal(isinstance(error, LateError), seconds)
        self.use.end()

    def _note_refusal(self, is_refused: bool, seconds: float) -> None:
        """Note whether a request that the gate let in before it was read was refused late.

        A client that sends slowly has itself to blame: others are not refused for it.
        """
        if self.use.worker is not None and self.exchange.client.expected is not None:
            is_late = seconds > _EARLY_OF_TIME * self._given(self._timeout_seconds)
            self.use.worker.line.note_refusal(is_refused and is_late and not self.exchange.is_slow)

    @property
    def delay_ms(self) -> float:
        """How long it was computed."""
        return self._infer_seconds * 1e3

    @property
    def limit_seconds(self) -> float:
        """Within how many seconds of its first byte a request is answered that names no timeout."""
        return self._given()

    def reading(self, *, names_timeout: bool = False) -> TimeLimit:
        """Return a context in which the request is read, within a limit of time.

        The request has no place in line yet, but is refused if there is none: that costs least before its
        body is read. ``names_timeout``: the body may have a timeout, which is unknown before it is read.

        Raises:
            TooLargeError: the body is longer than it may be. BusyError: the line is full, of the model or
            for memory. LateError: no answer would come in time. Inside, as Exchange.within.
        """
        self.exchange.check_length()
        if self.use.worker is not None:
            named = names_timeout or self.use.timeout_seconds is None
            self.use.worker.check_room(None if named else self.left())
        self.exchange.check_room()
        # A request whose answer would be late does not wait any longer for its body or for memory.
        if names_timeout:
            return self.exchange.within(self._limit)
        return self.exchange.within(self.left(), limit_seconds=self._given())

    def check(self, timeout_seconds: float | None, n_bytes: int = 0) -> float | None:
        """Check, before all of the request has come, that it would be let in with this timeout.

        When it is called again, as more of the body comes, the request is refused where it would be too
        late even if nothing else came before the rest of it, at the pace of what has come. Its pace refuses
        no other request.

        ``n_bytes``: of memory for which it has to wait before. Return for how long it may, of its own time;
        None: it has none.

        Raises:
            As ``reading``.
        """
        self._timeout_seconds = timeout_seconds
        seconds_left, lease = self.left(timeout_seconds), self.exchange.lease
        if self._was_checked:
            worker = self.use.worker
            is_slow = seconds_left < (1 - _EARLY_OF_TIME) * self._given(timeout_seconds)
            if is_slow and worker is not None and worker.line.is_contended:
                worker.check_deadline(seconds_left - self.exchange.rest_seconds)
            return None
        self._was_checked = not n_bytes
        waits_seconds = lease.wait_seconds(n_bytes) if n_bytes else 0.0
        if self.use.worker is not None:
            expected = self.exchange.expected
            try:
                is_read = self.exchange.client.is_complete
                self.use.worker.check_room(seconds_left - waits_seconds, expected, is_read)
            except LateError:
                lease.memory.doubt()
                raise
            if expected is not None:
                self.use.worker.line.expect_still(expected, waits_seconds)
        if seconds_left == self._limit:
            return None
        if self.exchange.limit is not None:
            late = LateError(_PASSED.format(self._given(timeout_seconds)))
            self.exchange.limit.shorten(seconds_left, late)
        return seconds_left * _MEMORY_OF_TIME

    async def compute(self, question: ModelRequest, keep: Callable[[Arrays], Kept[A]]) -> A:
        """Return what ``keep`` takes of the outputs, before the next sweep overwrites them.

        Raises:
            As ``compute_part``, and Exchange.hold.
        """
        answer = await self.compute_part(question, keep)
        await self.hold_answer(answer)
        return answer.what

    async def compute_all(
        self, questions: Sequence[tuple[ModelRequest, Callable[[Arrays], Kept[A]]]]
    ) -> list[A]:
        """Return what is kept of the outputs of each of ``questions``, which share passes where they may.

        Raises:
            As ``compute_part``: the first error; nothing is computed any more then.
        """
        if len(questions) == 1:
            return [(await self.compute_part(*questions[0])).what]
        waiting: dict[ClientOfSeveral, Callable[[], None]] = {}
        client = self.exchange.client
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(
                        self.compute_part(*question, ClientOfSeveral(client, waiting))
                    )
                    for question in questions
                ]
        except ExceptionGroup as exc:
            raise exc.exceptions[0] from None
        return [task.result().what for task in tasks]

    async def acquire(self, timeout_seconds: float | None) -> Worker:
        """Return what answers, when the model is loaded; raises as Repository.acquire, and LateError."""
        self.use = await self.service.repository.acquire(
            self.use, self.name, self._version, self.left(timeout_seconds)
        )
        assert self.use.worker is not None
        return self.use.worker

    async def compute_part(
        self,
        question: ModelRequest,
        keep: Callable[[Arrays], Kept[A]],
        client: LeavingClient | None = None,
    ) -> Kept[A]:
        """Return what ``keep`` takes of the outputs; the request holds the memory that it held.

        ``client``: whose request it is; None: the exchange's.

        Raises:
            DisconnectedError: the client went away; the work for it alone was cancelled.
            LateError: no answer could come in time. Otherwise as ``acquire``, Worker.answer and ``keep``.
        """
        worker = await self.acquire(question.timeout_seconds)
        seconds_left = self.left(question.timeout_seconds)
        scratch_bytes = worker.engine.plan.scratch_bytes

        def take(
            outputs: Arrays,
        ) -> "Kept[A]":  # in quotes, which saves its evaluation at every call
            question.inputs.clear()
            selected = keep(outputs)
            if scratch_bytes >= LARGE_BYTES:  # kernels leave holes between such blocks
                self.service.trimming.look(scratch_bytes)
            return selected

        try:
            self._came()
            answer = await worker.answer(
                question.inputs,
                seconds_left,
                take,
                question.priority,
                client or self.exchange.client,
            )
        except DeadlineError as exc:
            limit_seconds = self._given(question.timeout_seconds)
            raise DeadlineError(f"no answer within {limit_seconds:g} s") from exc
        self.service.metrics.requests.sweep(self.name, answer.statistics, answer.queue_seconds)
        self._decoding_seconds += question.decoding_seconds
        self._queue_seconds += answer.queue_seconds
        self._infer_seconds += answer.statistics.delay_seconds
        self._batch_size = answer.lanes
        return answer.outputs

    def _came(self) -> None:
        """Let its line expect it no longer: it joins, or has ended."""
        if self.use.worker is not None and self.exchange.expected is not None:
            self.use.worker.line.came(self.exchange.expected)
            self.exchange.expected = None

    async def hold_answer(self, answer: Kept[Any]) -> None:
        """Hold the memory of the answer in place of that of the request."""
        pieces_bytes = RAW_ANSWER_BYTES if answer.is_raw else CODEC_BYTES
        if answer.n_bytes <= SHORT_CODEC_BYTES:
            pieces_bytes = SHORT_CODEC_BYTES
        n_bytes = answer.n_bytes + pieces_bytes
        # A small amount that is held and enough is not worth changing.
        if not n_bytes <= self.exchange.lease.held_bytes <= SMALL_BYTES:
            with self.exchange.within(self._limit, "there was no memory for the answer"):
                await self.exchange.hold(n_bytes)
        self._encodes_since = time.perf_counter()

    def _given(self, wanted: float | None = None) -> float:
        """Return the limit that the client knows, not what is left of it; ``wanted``: as ``left``."""
        return min(wanted or self.use.timeout_seconds or self._limit, self._limit)

    def left(self, wanted: float | None = None) -> float:
        """Return within how many seconds the answer must come; ``wanted``: the timeout of the request.

        Raises:
            LateError: the timeout has passed before anything was computed.
        """
        if wanted is None:
            wanted = self.use.timeout_seconds
        if wanted is None:
            return self._limit
        passed = time.monotonic() - self.exchange.arrived_at
        if wanted <= passed:
            raise LateError(_PASSED.format(wanted), passed - wanted)
        return min(self._limit, wanted - passed)
