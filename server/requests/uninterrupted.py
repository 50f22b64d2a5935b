"""Tasks that are cancelled: work in them that must not stop half done, and errors with which they end."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

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


class Interruption:
    """Ends what a task does inside with any error, as asyncio.timeout does with one of its own."""

    #: The task, once something in it may have to be ended.
    _task: "asyncio.Task[Any] | None" = None
    _handle: asyncio.Handle | None = None
    _why: Exception | None = None
    _has_cancelled = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._handle is not None:
            self._handle.cancel()
        # What was to be ended in the moment in which it could go on has gone on.
        if self._has_cancelled and self._task is not None and self._why is not None:
            is_ours = self._task.uncancel() <= self._cancelling
            if is_ours and kind is asyncio.CancelledError:
                raise self._why from None

    def arm(self) -> None:
        """Let the task that calls this be ended from now on."""
        self._task = asyncio.current_task()
        assert self._task is not None
        self._cancelling = self._task.cancelling()

    def end(self, why: Exception) -> None:
        """End the task with the error ``why``, soon, if it may be; the first error counts."""
        if self._task is None or self._why is not None:
            return
        self._why = why
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._task.get_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        assert self._task is not None
        self._has_cancelled = True
        self._task.cancel()
