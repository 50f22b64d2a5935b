"""What tasks wait for: threads, work that must not stop half done, and errors that end the wait."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple

from pipeline.execution.shielded import run_to_completion

T = TypeVar("T")
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
    """Up to ``limit`` threads for work that would hold up the event loop for milliseconds.

    One starts where all others work: a server with few clients has few.
    """

    def __init__(self, limit: int) -> None:
        self._pool = ThreadPoolExecutor(limit, "aside")
        self._has_threads = False

    async def do(self, work: Callable[[*Ps], T], *args: *Ps) -> T:
        """Return what ``work`` returns, on a thread; a cancellation is raised when it has ended.

        Where the system gives no more threads, those that there are do the work.

        Raises:
            RuntimeError: there are none.
        """
        return await run_to_completion(self._started(work, *args))

    def _started(self, work: Callable[[*Ps], T], *args: *Ps) -> "asyncio.Future[T]":
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        calls: list[Callable[[], None]] = [partial(_do, future, work, *args)]
        try:
            self._pool.submit(_call_last, calls)
            self._has_threads = True
        except RuntimeError:  # the pool has the work in its queue by then
            if not self._has_threads:
                calls.clear()
                raise
        return future

    def close(self) -> None:
        """End the threads, once they have done what was given to them; blocks."""
        self._has_threads = False
        self._pool.shutdown()


def _do(future: "asyncio.Future[T]", work: Callable[[*Ps], T], *args: *Ps) -> None:
    try:
        done = work(*args)
    except Exception as exc:  # noqa: BLE001  raised where it is waited for
        tell(future, exc)
    else:
        tell(future, done)
    finally:
        del future  # see run_to_completion


async def in_thread(work: Callable[[*Ps], T], *args: *Ps) -> T:
    """Return what ``work`` returns, as ``asyncio.to_thread`` does.

    Raises:
        RuntimeError: the system gives no thread; then ``work`` is never called, also not by a thread that
            is free later: the pool may have it in its queue. Otherwise the errors of ``work``.
    """
    calls: list[Callable[[], T]] = [partial(copy_context().run, work, *args)]
    try:
        result = asyncio.get_running_loop().run_in_executor(None, _call_last, calls)
    except BaseException:
        calls.clear()
        raise
    return await result


def _call_last(calls: list[Callable[[], T]]) -> T:
    """Call the last of ``calls``, which it leaves: the pool may keep the list for long."""
    return calls.pop()()


# Work that must not stop half done.


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
        yield await run_to_completion(opened())
    finally:
        await run_to_completion(stack.aclose())


# Waits that end with an error.


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
                try:
                    raise self._why from None
                finally:
                    self._why = None  # else a circle: the error refers to this frame

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
