"""What infer, classify and detect share: find the model, run it for this client, count what came of it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from numpy.typing import NDArray

from models.pack import Pack
from pipeline.errors import DeadlineError
from server.context import Context
from server.errors import DisconnectedError
from server.protocol.errors import outcome_of
from server.worker import Answer

T = TypeVar("T")
Respond = Callable[[Answer, Pack], Awaitable[T]]
Prepare = Callable[[Pack], Awaitable[Mapping[str, NDArray[Any]]]]


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


ContextDependency = Annotated[Context, Depends(_context)]


async def run_model(
    context: Context,
    request: Request,
    name: str,
    version: str | None,
    prepare: Prepare,
    respond: Respond[T],
) -> T:
    """Answer one request to model ``name``.

    Reading the request and answering it may each take the time limit.
    ``prepare`` makes the inputs once the model is known, ``respond`` the response of the answer.
    The outcome that is counted is that of the whole.

    Raises:
        DisconnectedError: the client went away; its work was cancelled, no one else's.
        Otherwise what Repository.get, ``prepare``, Worker.infer and ``respond`` raise.
    """
    worker, pack = context.repository.worker(name, version)
    started, limit = time.perf_counter(), context.settings.request_timeout
    outcome = "cancelled"
    try:
        with worker.admitted():
            inputs = await _within(limit, prepare(pack))
            answer = await _until_disconnect(request, worker.infer(inputs, limit))
        context.metrics.sweep(name, answer.statistics, answer.queue_seconds)
        response = await respond(answer, pack)
        outcome = "ok"
        return response
    except Exception as exc:
        outcome = outcome_of(exc)
        raise
    finally:
        context.metrics.outcome(name, outcome, time.perf_counter() - started)


async def _within(seconds: float, work: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        raise DeadlineError(f"the request was not read within {seconds:g} s") from None


async def _until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, cancelled when the client closes its connection."""
    task = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise DisconnectedError("the client went away")
        return task.result()
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
