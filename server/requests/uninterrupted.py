"""Waiting for work that must not stop half done, also when the task that waits is cancelled."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def to_its_end(work: Awaitable[T]) -> T:
    """Return what ``work`` returns; a cancellation is raised when it has ended, not before."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            cancelled = not task.cancelled()
        except Exception:  # noqa: BLE001  raised below
            break
    if cancelled:
        if not task.cancelled():
            task.exception()  # seen, or the loop complains
        raise asyncio.CancelledError
    return task.result()


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
