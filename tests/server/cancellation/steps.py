"""Cancelling a piece of work at each of its awaits: its task, and those that it starts, are counted.

A step is one time that any of these tasks gives the loop back its turn. At the chosen one the first task is
cancelled as any other would be, by ``Task.cancel``, while it waits.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import ContextVar
from typing import Any

Work = Callable[[], Coroutine[Any, Any, object]]

_counting: ContextVar["_Steps | None"] = ContextVar("_counting", default=None)


class _Steps:
    """Counts the steps of ``task`` and of what began in its context; cancels it at the ``chosen`` one."""

    def __init__(self, chosen: int) -> None:
        self.count = 0
        self.task: asyncio.Task[object] | None = None
        self._chosen = chosen

    def one_more(self) -> None:
        self.count += 1
        if self.count == self._chosen and self.task is not None:
            asyncio.get_running_loop().call_soon(self.task.cancel)


class _Counted(Awaitable[Any]):
    """What ``work`` awaits, with a count of it."""

    def __init__(self, work: Coroutine[Any, Any, Any], steps: _Steps) -> None:
        self._work, self._steps = work, steps

    def __await__(self) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        while True:
            try:
                waits = self._work.send(None) if error is None else self._work.throw(error)
            except StopIteration as done:
                return done.value
            self._steps.one_more()
            error = None
            try:
                yield waits
            except BaseException as exc:  # noqa: BLE001  it is raised in the counted step
                error = exc


async def _all_of(counted: _Counted) -> Any:
    return await counted


@contextlib.contextmanager
def _factory(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    def make(
        loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> "asyncio.Task[Any]":
        context = options.get("context")
        steps = _counting.get() if context is None else context.get(_counting)
        if steps is not None:
            work = _all_of(_Counted(work, steps))
        return asyncio.Task(work, loop=loop, **options)

    before = loop.get_task_factory()
    loop.set_task_factory(make)  # type: ignore[arg-type]
    try:
        yield
    finally:
        loop.set_task_factory(before)


async def cancelled_at(step: int, work: Work) -> bool:
    """Do ``work`` and cancel it at ``step``, from 1; return whether it had as many.

    What it raises once it is to end is lost, what it raises before is raised.
    """
    steps = _Steps(step)
    token = _counting.set(steps)
    try:
        with _factory(asyncio.get_running_loop()):
            steps.task = asyncio.create_task(work())
            await asyncio.wait({steps.task})
    finally:
        _counting.reset(token)
    was_told, task = steps.count >= step, steps.task
    steps.task = None  # or it would live in a circle, with all that its frames hold
    if not task.cancelled() and (error := task.exception()) and not was_told:
        raise error
    return was_told
