"""What infer, classify and detect share: find the model, run it for this client, count what came of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from numpy.typing import NDArray

from models.packs.pack import Pack
from pipeline.execution.given import Arrays, Tensors, copies
from pipeline.execution.statistics import SweepStatistics
from server.context import Context
from server.errors import DisconnectedError, LateError, NotServingError
from server.memory.request_needs import answer_bytes
from server.memory.request_room import SMALL_BYTES
from server.metrics.inference_statistics import Passage
from server.protocol.errors import outcome_of
from server.repository.worker import Worker
from server.requests.exchange import Exchange
from server.requests.tensors import Check
from server.scheduling.configured import deadline_of
from server.scheduling.sweeps import level

T = TypeVar("T")

# Few clients leave so soon: a short request is not watched.
_UNWATCHED_SECONDS = 0.01


class Question(Protocol):
    """What a request asks of the model."""

    @property
    def inputs(self) -> Tensors: ...

    def release(self) -> None:
        """Let go of the inputs: the sweep has ended, and outputs take their place in memory."""

    @property
    def timeout_seconds(self) -> float | None:
        """Within which the client wants the answer; None: as the server has it."""

    @property
    def decoding_seconds(self) -> float:
        """What it took to make the inputs of what came."""

    @property
    def priority(self) -> int:
        """1: before all others; 0: as usual."""


Q = TypeVar("Q", bound=Question)
A = TypeVar("A")


class Kept(NamedTuple, Generic[A]):
    """What a request keeps of the outputs, and what that takes; ``is_raw``: it is sent as it is."""

    what: A
    n_bytes: int
    is_raw: bool = False


class Parts(NamedTuple, Generic[Q, A, T]):
    """What is particular to an endpoint.

    ``prepare`` reads the request once the model is known, and may ask before all of it has come whether it
    would be refused; ``keep`` takes from the outputs what is needed of
    them, while nobody else may use the model; ``respond`` makes the response of that. ``names_timeout``:
    a request may have a timeout of its own, which nobody knows before it is read.
    """

    prepare: Callable[[Pack, Check], Awaitable[Q]]
    keep: Callable[[Q, Arrays, Pack], Kept[A]]
    respond: Callable[[Q, A, SweepStatistics, Pack], Awaitable[T]]
    names_timeout: bool = False


def kept_tensors(outputs: Arrays) -> Kept[dict[str, NDArray[Any]]]:
    """Keep ``outputs`` as they are."""
    held = copies(outputs)
    return Kept(held, sum(map(array_bytes, held.values())))


def array_bytes(array: NDArray[Any]) -> int:
    """Return what ``array`` takes, with the characters of strings."""
    return array.nbytes + (sum(map(len, array.flat)) if array.dtype.kind == "O" else 0)


async def run_model(
    context: Context,
    exchange: Exchange,
    name: str,
    version: str | None,
    parts: Parts[Q, A, T],
) -> T:
    """Answer one request of the client of ``exchange`` to model ``name``, in the ``parts`` of its endpoint.

    Reading and computing may each take the time limit; a time that the client names, or the model has,
    counts from the first byte of the request.
    A request has no place in line before its body is read, and no evicted model comes back, for which
    another goes, before a request to it is found right. What is counted is the outcome of the whole.

    Raises:
        DisconnectedError: the client went away; its work was cancelled, no one else's.
        StalledError: the client made no progress. BusyError: the line is full.
        LateError: no answer could come in time.
        Otherwise what Repository.use, Worker.answer and the ``parts`` raise.
    """
    limit, question = context.settings.request_timeout, None
    away = await context.repository.away(name, version)
    if away is not None:
        with _Counted(context, exchange, name, away.pack.version):
            times = _Times.of(context, exchange, name, away.default_timeout_seconds)
            question = await _read(exchange, parts, away.pack, times, None)
            limit = times.left(question.timeout_seconds)
    use = await context.repository.use(name, version, limit)
    try:
        worker, pack = use.worker, use.pack
        with _Counted(context, exchange, name, pack.version) as counted:
            times = _Times.of(context, exchange, name, use.default_timeout_seconds)
            if question is None:
                question = await _read(exchange, parts, pack, times, worker)
            elif away is not None and not _take_the_same(away.pack, pack):
                raise NotServingError(
                    f"model {name!r}: its files were changed meanwhile; ask again"
                )
            left = times.left(question.timeout_seconds)

            def take(outputs: Arrays) -> "Kept[A]":  # unquoted it would be looked up every time
                question.release()
                return parts.keep(question, outputs, pack)

            if worker.is_quick:  # here and now: it takes next to nothing
                answer = worker.answer_at_once(question.inputs, left, take)
            else:
                work = worker.answer(question.inputs, left, take, level(question.priority))
                answer = await until_left(exchange, work)
            held = answer_bytes(answer.outputs.n_bytes, answer.outputs.is_raw)
            if (
                not held <= exchange.lease.held_bytes <= SMALL_BYTES
            ):  # so little is not worth changing
                async with exchange.within(times.limit, "there was no memory for the answer"):
                    await exchange.hold(held)
            context.metrics.sweep(name, answer.statistics, answer.queue_seconds)
            encoding = time.perf_counter()
            response = await parts.respond(question, answer.outputs.what, answer.statistics, pack)
            counted.passage = Passage(
                queue=answer.queue_seconds,
                compute_input=question.decoding_seconds,
                compute_infer=answer.statistics.delay_seconds,
                compute_output=time.perf_counter() - encoding,
                lanes=answer.lanes,
            )
            return response
    finally:
        use.end()


class _Times(NamedTuple):
    """When a request came, in seconds of time.monotonic, and what its answer may take from then on.

    ``usual``: where the request does not say, in seconds; None: only ``limit`` holds, for each part.
    """

    arrived: float
    usual: float | None
    limit: float

    @classmethod
    def of(
        cls, context: Context, exchange: Exchange, model: str, configured: float | None
    ) -> "_Times":
        usual = usual_timeout(context, model, configured)
        return cls(exchange.arrived_at, usual, context.settings.request_timeout)

    def left(self, wanted: float | None = None) -> float:
        """Return within how many seconds the answer must come; ``wanted``: by the request itself.

        Raises:
            LateError: the time that was wanted has passed before anything was computed.
        """
        wanted = wanted or self.usual
        if wanted is None:
            return self.limit
        passed = time.monotonic() - self.arrived
        if wanted <= passed:
            raise LateError(
                f"the request was not read within its timeout of {wanted:g} s", passed - wanted
            )
        return min(self.limit, wanted - passed)


class _Counted:
    """Counts what becomes of a request: an error, or the answer that is there once ``passage`` is known."""

    def __init__(self, context: Context, exchange: Exchange, model: str, version: str) -> None:
        self._metrics, self._exchange = context.metrics, exchange
        self._model, self._version = model, version
        self.passage: Passage | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, exc: BaseException | None, _: object) -> None:
        if exc is None and self.passage is None:
            return  # it is not answered yet
        outcome = "ok"
        if exc is not None:
            outcome = outcome_of(exc) if isinstance(exc, Exception) else "cancelled"
        seconds = time.monotonic() - self._exchange.arrived_at
        self._metrics.outcome(self._model, outcome, seconds)
        of = self._metrics.inferences.of(self._model, self._version)
        of.add(outcome, seconds, self.passage)


async def _read(
    exchange: Exchange, parts: Parts[Q, A, T], pack: Pack, times: _Times, worker: Worker | None
) -> Q:
    """Return what the request asks of ``pack``, which ``worker`` has loaded; raises as ``run_model``."""

    def check(timeout_seconds: float | None) -> None:
        left = times.left(timeout_seconds)
        if worker is not None:
            worker.check_room(left)

    # A refusal costs least before the body is read.
    if worker is not None:
        named = parts.names_timeout or times.usual is None
        worker.check_room(None if named else times.left())
    exchange.check_room()
    # An answer that would be late is not waited for, with a body or without memory.
    async with exchange.within(times.limit if parts.names_timeout else times.left()):
        return await parts.prepare(pack, check)


def _take_the_same(pack: Pack, other: Pack) -> bool:
    """Return whether a request that is right for ``pack`` means the same to ``other``."""
    one, two = pack.manifest, other.manifest
    return (one.inputs, one.outputs, one.preprocess) == (two.inputs, two.outputs, two.preprocess)


def usual_timeout(context: Context, model: str, configured: float | None) -> float | None:
    """Return within how many seconds ``model`` answers who does not say; None: the server's limit holds.

    ``configured``: by the model's own configuration.
    """
    return deadline_of(context.settings, model) or configured


async def until_left(exchange: Exchange, work: Coroutine[Any, Any, T]) -> T:
    """Return what ``work`` does; it is cancelled when the client closes its connection.

    Raises:
        DisconnectedError: it did.
    """
    task = asyncio.create_task(work)
    watcher: asyncio.Task[None] | None = None
    try:
        await asyncio.wait({task}, timeout=_UNWATCHED_SECONDS)
        if not task.done():
            watcher = asyncio.create_task(exchange.left())
            await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise DisconnectedError("the client went away")
        return task.result()
    finally:
        running = [each for each in (task, watcher) if each is not None and not each.done()]
        for each in running:
            each.cancel()
        if running:
            await asyncio.gather(*running, return_exceptions=True)
