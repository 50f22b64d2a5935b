"""A system that gives no more threads: a model is not served, and nothing of it stays."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest

from loader.errors import ReadError
from pipeline.execution.errors import CancelledError, DeadlineError
from server.errors import DisconnectedError, NotServingError
from server.repository.worker import _is_late
from server.repository.working import Job
from server.requests.waiting import Aside, in_thread
from tests.examples import over
from tests.server.conftest import SettingsFactory
from tests.server.support import LIMIT_SECONDS, arrays, inputs_for, serving


def refuse(patch: pytest.MonkeyPatch, name: str, allowed: int) -> None:
    """Let ``allowed`` threads start whose names begin so."""
    start: Callable[[threading.Thread], None] = threading.Thread.start
    left = [allowed]

    def counted(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("can't start new thread")
        start(thread)

    patch.setattr(threading.Thread, "start", counted)


def named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(name)]


@pytest.mark.parametrize(("workers", "allowed"), [("tiny=1", 0), ("tiny=2", 0), ("tiny=2", 1)])
async def test_a_model_without_threads_holds_nothing_and_may_come_later(
    settings: SettingsFactory, workers: str, allowed: int
) -> None:
    """Of its worker, or of a partition: those that were started end."""
    async with serving(settings(64 << 20, workers=workers, models=("tiny",))) as service:
        repository, budget = service.inside.repository, service.inside.budget
        await repository.unload("tiny")
        before, others = budget.held(), named("engine-")
        with pytest.MonkeyPatch.context() as patch:
            refuse(patch, "engine-", allowed)
            with pytest.raises(NotServingError, match="the system allows no more threads"):
                await repository.load("tiny")
        assert budget.held() == before
        for thread in named("engine-"):
            if thread not in others:
                thread.join(LIMIT_SECONDS)
        assert named("engine-") == others
        await repository.load("tiny")
        assert arrays(await service.infer("tiny", inputs_for("tiny")))


@over("allowed", [0, 1, 2])
async def test_work_goes_to_the_threads_that_could_be_started(allowed: int) -> None:
    threads = Aside(3)
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch, "aside_", allowed)
        for index in range(5):
            if allowed:
                assert await threads.do(lambda index=index: index) == index  # type: ignore[misc]
            else:
                with pytest.raises(RuntimeError, match="new thread"):
                    await threads.do(lambda: 0)
    assert await threads.do(lambda: 7) == 7
    threads.close()


@over(
    "answer, error, late",
    [
        (DeadlineError("late"), None, True),
        (CancelledError("cancelled"), DeadlineError("no answer within 1 s"), True),
        (CancelledError("cancelled"), DisconnectedError("the client went away"), False),
        (CancelledError("cancelled"), None, False),
        (ReadError("EIO"), None, False),
        (ReadError("EIO"), DeadlineError("no answer within 1 s"), True),
    ],
)
async def test_an_inference_is_late_where_its_time_limit_stopped_it(
    answer: Exception, error: Exception | None, late: bool
) -> None:
    """Whatever time it is: a timer may come before its time by another clock."""
    future = asyncio.get_running_loop().create_future()
    if error is not None:
        future.set_exception(error)
        future.exception()
    job = cast(Job, SimpleNamespace(future=future))
    assert _is_late(job, answer) is late
    future.cancel()
    assert _is_late(job, CancelledError()) is isinstance(error, DeadlineError)


async def test_work_that_no_thread_could_begin_is_never_called() -> None:
    """The pool has it in its queue by then: its next thread finds nothing to do."""
    calls: list[int] = []
    pool = ThreadPoolExecutor(1, "pool")
    asyncio.get_running_loop().set_default_executor(pool)
    with pytest.MonkeyPatch.context() as patch:
        refuse(patch, "pool", 0)
        with pytest.raises(RuntimeError, match="new thread"):
            await in_thread(calls.append, 1)
    await in_thread(calls.append, 2)
    assert calls == [2]
    with pytest.raises(ZeroDivisionError):
        await in_thread(divmod, 1, 0)
