"""What infer, classify and detect share: find the model, run it for this client, count what came of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Protocol, TypeVar

from fastapi import Depends, Request
from numpy.typing import NDArray

from models.packs.pack import Pack
from pipeline.execution.errors import DeadlineError
from pipeline.execution.given import Arrays, Tensors, copies
from pipeline.execution.statistics import SweepStatistics
from server.context import Context
from server.errors import DisconnectedError, EncodedError, shown
from server.memory.request_memory import SMALL_BYTES
from server.memory.request_needs import CODEC_BYTES, SHORT_CODEC_BYTES
from server.protocol.errors import outcome_of
from server.requests.exchange import Exchange
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
    def priority(self) -> int:
        """1: before all others; 0: as usual."""


Q = TypeVar("Q", bound=Question)
A = TypeVar("A")


@dataclass(frozen=True)
class Kept(Generic[A]):
    """What a request keeps of the outputs, and what that takes."""

    what: A
    n_bytes: int


@dataclass(frozen=True)
class Parts(Generic[Q, A, T]):
    """What is particular to an endpoint.

    ``prepare`` reads the request once the model is known; ``keep`` takes from the outputs what is needed of
    them, while nobody else may use the model; ``respond`` makes the response of that.
    """

    prepare: Callable[[Pack], Awaitable[Q]]
    keep: Callable[[Q, Arrays, Pack], Kept[A]]
    respond: Callable[[Q, A, SweepStatistics, Pack], Awaitable[T]]


def kept_tensors(outputs: Arrays) -> Kept[dict[str, NDArray[Any]]]:
    """Keep ``outputs`` as they are."""
    held = copies(outputs)
    return Kept(held, sum(map(_array_bytes, held.values())))


def _array_bytes(array: NDArray[Any]) -> int:
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
    request: Request,
    name: str,
    version: str | None,
    parts: Parts[Q, A, T],
) -> T:
    """Answer one request to model ``name``, in the ``parts`` of its endpoint.

    Reading and computing may each take the time limit; a time that the client names counts from the start.
    A request has no place in line before its body is read. What is counted is the outcome of the whole.

    Raises:
        DisconnectedError: the client went away; its work was cancelled, no one else's.
        EncodedError: the body is compressed. StalledError: the client made no progress.
        BusyError: the line is full. LateError: no answer could come in time.
        Otherwise what Repository.get, Worker.answer and the ``parts`` raise.
    """
    worker, pack = context.repository.worker(name, version)
    started, limit = time.perf_counter(), context.settings.request_timeout
    exchange = exchange_of(request)
    outcome = "cancelled"
    try:
        # A refusal costs least before the body is read.
        check_encoding(request)
        usual = deadline_of(context.settings, name)
        worker.check_room(usual)
        exchange.check_room()
        async with exchange.within(limit):
            question = await parts.prepare(pack)
        wanted = question.timeout_seconds or usual
        left = _left(wanted, time.perf_counter() - started, limit)

        def take(outputs: Arrays) -> Kept[A]:
            question.release()
            return parts.keep(question, outputs, pack)

        if worker.is_quick:
            answer = worker.answer_at_once(question.inputs, take)
        else:
            priority = level(question.priority)
            work = worker.answer(question.inputs, left, take, priority)
            answer = await _until_disconnect(request, work)
        held = _with_text(answer.outputs.n_bytes)
        if not held <= exchange.lease.held_bytes <= SMALL_BYTES:  # so little is not worth changing
            async with exchange.within(limit, "there was no memory for the answer"):
                await exchange.hold(held)
        context.metrics.sweep(name, answer.statistics, answer.queue_seconds)
        response = await parts.respond(question, answer.outputs.what, answer.statistics, pack)
        outcome = "ok"
        return response
    except Exception as exc:
        outcome = outcome_of(exc)
        raise
    finally:
        context.metrics.outcome(name, outcome, time.perf_counter() - started)


def check_encoding(request: Request) -> None:
    """Check that the body of ``request`` is sent as it is.

    Raises:
        EncodedError: it is compressed.
    """
    for name, value in request.scope["headers"]:
        if name == b"content-encoding" and value.lower() not in {b"", b"identity"}:
            encoding = shown(value.decode("latin-1"))
            raise EncodedError(f"the body is encoded as {encoding}: send it as it is")


def _left(wanted: float | None, passed: float, limit: float) -> float:
    """Return within how many seconds the answer must come.

    Raises:
        DeadlineError: the time that the client named has passed.
    """
    if wanted is None:
        return limit
    if wanted <= passed:
        raise DeadlineError(f"the request was not read within its timeout of {wanted:g} s")
    return min(limit, wanted - passed)


def _with_text(n_bytes: int) -> int:
    """Return what an answer takes until it is sent; ``n_bytes``: without its text."""
    return n_bytes + (CODEC_BYTES if n_bytes > SHORT_CODEC_BYTES else SHORT_CODEC_BYTES)


async def _until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, cancelled when the client closes its connection."""
    task = asyncio.create_task(work)
    watcher: asyncio.Task[None] | None = None
    try:
        await asyncio.wait({task}, timeout=_UNWATCHED_SECONDS)
        if not task.done():
            watcher = asyncio.create_task(_disconnected(request))
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


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
