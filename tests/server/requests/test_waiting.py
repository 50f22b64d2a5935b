"""What must not be left half done is waited for, however often the waiting task is cancelled; threads."""

import asyncio
import contextlib
import gc
import threading
import weakref

import pytest

from pipeline.execution.shielded import run_to_completion
from server.requests.waiting import Aside, Interruption
from tests.server.support import LIMIT_SECONDS


async def test_work_that_is_cancelled_is_waited_for() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(LIMIT_SECONDS)

    task = asyncio.create_task(run_to_completion(asyncio.to_thread(work)))
    assert await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_work_is_raised() -> None:
    async def fails() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        await run_to_completion(fails())


async def test_what_is_inside_ends_with_the_first_error_once_it_may_end() -> None:
    async def waits() -> None:
        with Interruption() as scope:
            scope.end(KeyError("too early"))
            await asyncio.sleep(0)
            scope.arm()
            scope.end(KeyError("first"))
            scope.end(KeyError("second"))
            await asyncio.Event().wait()

    with pytest.raises(KeyError, match="first"):
        await waits()


async def test_work_aside_runs_on_few_threads_and_says_what_came_of_it() -> None:
    aside = Aside(2)
    try:
        names = await asyncio.gather(
            *(aside.do(lambda: threading.current_thread().name) for _ in range(8))
        )
        assert set(names) <= {"aside_0", "aside_1"}
        assert await aside.do(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await aside.do(divmod, 7, 0)
    finally:
        aside.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("aside_")]


async def test_who_is_cancelled_waits_for_his_work_aside() -> None:
    aside, begun, go_on = Aside(1), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(LIMIT_SECONDS)

    task = asyncio.create_task(aside.do(work))
    assert await asyncio.to_thread(begun.wait, LIMIT_SECONDS)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    aside.close()


class Thing:
    """Something that a weak reference can be had of."""


async def test_what_failed_aside_is_freed_at_once() -> None:
    """Nothing of it is in a circle: a photograph that is damaged may be large."""
    aside, thing = Aside(1), Thing()
    seen = weakref.ref(thing)

    def fails(_: Thing) -> None:
        raise KeyError("x")

    gc.disable()
    try:
        with contextlib.suppress(KeyError):
            await aside.do(fails, thing)
        del thing
        await asyncio.to_thread(aside.close)
        assert seen() is None
    finally:
        gc.enable()
