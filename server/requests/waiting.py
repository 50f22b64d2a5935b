"""What tasks wait for: threads, and work that must not stop half done."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar, TypeVarTuple

T = TypeVar("T")
P = ParamSpec("P")
Ps = TypeVarTuple("Ps")

# Futures of an event loop that threads end.


def tell(future: "asyncio.Future[Any]", said: object) -> None:
    """Let ``future``, of an event loop, end with ``said``, a result or an error, unless it has ended.

    Thread-safe.
    """
    try:
        future.get_loop().call_soon_threadsafe(settle, future, said)
    except RuntimeError:
        return  # the loop is closed, and nothing waits any more


def settle(future: "asyncio.Future[Any]", said: object) -> None:
    """Do as ``tell``, on the thread of the event loop."""
    if future.done():
        return
    if isinstance(said, Exception):
        future.set_exception(said)
    else:
        future.set_result(said)


class Aside:
    """Up to ``limit`` threads for work that would hold up the event loop for milliseconds."""

    def __init__(self, limit: int) -> None:
        self._threads = ThreadPoolExecutor(limit, "aside")

    async def do(self, work: Callable[[*Ps], T], *args: *Ps) -> T:
        """Return what ``work`` returns, on a thread; a cancellation is raised when it has ended."""
        loop = asyncio.get_running_loop()
        return await to_its_end(loop.run_in_executor(self._threads, work, *args))

    def close(self) -> None:
        """End the threads, once they have done what was given to them; blocks."""
        self._threads.shutdown()


# Work that must not stop half done.


async def to_its_end(work: Awaitable[T]) -> T:
    """Return what ``work`` returns; a cancellation is raised when it has ended, not before."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        # Another future than that of the work, which would be cancelled with the task that waits for it.
        ended = task.get_loop().create_future()
        task.add_done_callback(partial(_note, ended))
        try:
            await ended
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled():
            task.exception()  # seen, or the loop complains
        raise asyncio.CancelledError
    try:
        return task.result()
    finally:
        # The error of a future refers to this frame: a circle, which only the garbage collector would free.
        del task, work


def _note(ended: "asyncio.Future[None]", _: object) -> None:
    settle(ended, None)


def uninterrupted(
    method: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Have each call of ``method`` run to its end, as ``to_its_end`` does."""

    @functools.wraps(method)
    async def whole(*args: P.args, **kwargs: P.kwargs) -> T:
        return await to_its_end(method(*args, **kwargs))

    return whole


@contextlib.asynccontextmanager
async def held(
    opening: Awaitable[T], close: Callable[[T], Coroutine[Any, Any, None]]
) -> AsyncIterator[T]:
    """Yield what ``opening`` gives, and ``close`` it at the end, also where either is cancelled.

    A thread that opens a file goes on when its waiter is cancelled; one that was to close it may never
    begin.
    """
    stack = contextlib.AsyncExitStack()

    async def opened() -> T:
        found = await opening
        stack.push_async_callback(close, found)
        return found

    try:
        yield await to_its_end(opened())
    finally:
        await to_its_end(stack.aclose())
