"""What infer, classify and detect share: find the model, run it for this client, count what came of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, Generic, NamedTuple, Protocol, TypeVar

from fastapi import Depends, Request
from numpy.typing import NDArray

from models.packs.pack import Pack
from pipeline.execution.given import Arrays, Tensors, copies
from pipeline.execution.statistics import SweepStatistics
from server.context import Context
from server.errors import DisconnectedError, LateError
from server.memory.request_memory import SMALL_BYTES
from server.memory.request_needs import answer_bytes
from server.metrics.inference_statistics import Passage
from server.protocol.errors import outcome_of
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


def context_of(request: Request) -> Context:
    """Return what the server of ``request`` consists of."""
    context: Context = request.app.state.context
    return context


async def _context(request: Request) -> Context:
    return context_of(request)  # a dependency that is no coroutine would cost a change of threads


def exchange_of(request: Request) -> Exchange:
    """Return the exchange that RequestMiddleware opened for ``request``."""
    exchange: Exchange = request.scope["exchange"]
    return exchange


ContextDependency = Annotated[Context, Depends(_context)]


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
    A request has no place in line before its body is read. What is counted is the outcome of the whole.

    Raises:
        DisconnectedError: the client went away; its work was cancelled, no one else's.
        StalledError: the client made no progress. BusyError: the line is full.
        LateError: no answer could come in time.
        Otherwise what Repository.use, Worker.answer and the ``parts`` raise.
    """
    arrived, limit = exchange.arrived_at, context.settings.request_timeout
    use = await context.repository.use(name, version, limit)
    worker, pack = use.worker, use.pack
    outcome, passage = "cancelled", None
    try:
        # A refusal costs least before the body is read.
        usual = usual_timeout(context, name, use.default_timeout_seconds)

        def left_of(timeout_seconds: float | None) -> float:
            return _left(timeout_seconds or usual, time.monotonic() - arrived, limit)

        worker.check_room(None if parts.names_timeout or usual is None else left_of(None))
        exchange.check_room()

        def check(timeout_seconds: float | None) -> None:
            worker.check_room(left_of(timeout_seconds))

        # An answer that would be late is not waited for, with a body or without memory.
        async with exchange.within(limit if parts.names_timeout else left_of(None)):
            question = await parts.prepare(pack, check)
        left = left_of(question.timeout_seconds)

        def take(outputs: Arrays) -> "Kept[A]":  # unquoted it would be looked up every time
            question.release()
            return parts.keep(question, outputs, pack)

        if worker.is_quick:  # here and now: it takes next to nothing
            answer = worker.answer_at_once(question.inputs, left, take)
        else:
            work = worker.answer(question.inputs, left, take, level(question.priority))
            answer = await until_left(exchange, work)
        held = answer_bytes(answer.outputs.n_bytes, answer.outputs.is_raw)
        if not held <= exchange.lease.held_bytes <= SMALL_BYTES:  # so little is not worth changing
            async with exchange.within(limit, "there was no memory for the answer"):
                await exchange.hold(held)
        context.metrics.sweep(name, answer.statistics, answer.queue_seconds)
        encoding = time.perf_counter()
        response = await parts.respond(question, answer.outputs.what, answer.statistics, pack)
        passage = Passage(
            queue=answer.queue_seconds,
            compute_input=question.decoding_seconds,
            compute_infer=answer.statistics.delay_seconds,
            compute_output=time.perf_counter() - encoding,
            lanes=answer.lanes,
        )
        outcome = "ok"
        return response
    except Exception as exc:
        outcome = outcome_of(exc)
        raise
    finally:
        use.end()
        seconds = time.monotonic() - arrived
        context.metrics.outcome(name, outcome, seconds)
        context.metrics.inferences.of(name, pack.version).add(outcome, seconds, passage)


def usual_timeout(context: Context, model: str, configured: float | None) -> float | None:
    """Return within how many seconds ``model`` answers who does not say; None: the server's limit holds.

    ``configured``: by the model's own configuration.
    """
    return deadline_of(context.settings, model) or configured


def _left(wanted: float | None, passed: float, limit: float) -> float:
    """Return within how many seconds the answer must come.

    Raises:
        LateError: the time that was wanted has passed before anything was computed.
    """
    if wanted is None:
        return limit
    if wanted <= passed:
        raise LateError(
            f"the request was not read within its timeout of {wanted:g} s", passed - wanted
        )
    return min(limit, wanted - passed)


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
