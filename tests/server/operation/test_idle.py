"""Nothing polls: a thread that has nothing to do is asleep."""

import contextlib
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server.conftest import SettingsFactory
from tests.server.support import LIMIT_SECONDS, ServiceUnderTest, inputs_for, serving

TINY = inputs_for("tiny")
PAIR = inputs_for("pair")


@pytest.fixture(params=["auto", "async"])
async def idle(
    request: pytest.FixtureRequest, settings: SettingsFactory
) -> AsyncIterator[ServiceUnderTest]:
    """A service that has answered and has nothing in flight."""
    async with serving(settings(architecture=request.param, models_budget=2 << 20)) as service:
        for name, inputs in (("tiny", TINY), ("pair", PAIR)):
            await service.worker(name).infer(inputs, LIMIT_SECONDS)
            service.worker(name).engine.settle()
        yield service


async def test_a_request_wakes_no_more_than_one_thread(idle: ServiceUnderTest) -> None:
    pair, count = idle.worker("pair"), 20
    threads = pair._dispatcher.threads
    before = threads.wake_ups
    for _ in range(count):
        await pair.infer(PAIR, LIMIT_SECONDS)
    # The last may still be on its way to sleep.
    assert threads.wake_ups - before <= count + 1
    assert threads.count <= 3


async def test_an_idle_pool_is_not_woken_by_scrapes(idle: ServiceUnderTest) -> None:
    pool = idle.inside.pool
    before = pool.statistics().wake_ups
    for _ in range(20):
        await idle.metrics()
        await idle.client.get("/v2/health/ready")
    # A thread that has just reported its last read may still be on its way to sleep.
    assert pool.statistics().wake_ups - before <= len(service_threads())


def service_threads() -> dict[int, str]:
    """Our threads by the kernel's number."""
    mine = ("reader-", "engine-", "copier")
    return {
        thread.native_id: thread.name
        for thread in threading.enumerate()
        if thread.native_id and thread.name.startswith(mine)
    }


def switches(thread: int) -> int:
    """How often a thread went to sleep; 0 for one that has ended."""
    with contextlib.suppress(FileNotFoundError):
        for line in Path(f"/proc/self/task/{thread}/status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                return int(line.split()[1])
    return 0


@pytest.mark.slow
async def test_threads_sleep_through_an_idle_moment(idle: ServiceUnderTest) -> None:
    threads = service_threads()
    assert len(threads) >= 3
    threading.Event().wait(0.5)
    before = {number: switches(number) for number in threads}
    threading.Event().wait(2.0)
    woken = {name: switches(number) - before[number] for number, name in threads.items()}
    assert not any(woken.values()), woken
