"""Models follow the memory of the box: what is requested of them, counted and logged."""

import asyncio
import base64
import logging
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from pipeline.budget.budget import Budget
from server.errors import NotServingError
from server.memory.request_memory import RequestMemory
from server.operation.pressure_events import PressureEvents
from server.operation.relieving import Relieving, no_events, relieving

MIB = 1 << 20


class Models:
    """Give back what they are requested for, down to ``min_bytes``."""

    def __init__(self, budget: Budget, min_bytes: int = 10 * MIB) -> None:
        self.budget, self.min_bytes = budget, min_bytes
        self.eased: list[int] = []
        self.fails: Exception | None = None
        self.requested = asyncio.Event()

    async def relieve(self, ceiling_bytes: int) -> None:
        self.budget.ceiling_bytes = ceiling_bytes
        self.requested.set()
        await asyncio.sleep(0)
        if self.fails is not None:
            raise self.fails
        n_bytes = max(min(self.budget.used_bytes, ceiling_bytes), self.min_bytes)
        self.budget.change("a", {"resident": n_bytes})

    def ease(self, ceiling_bytes: int) -> None:
        self.budget.ceiling_bytes = ceiling_bytes
        self.eased.append(ceiling_bytes)


class Scene:
    """Models that hold all of a budget, in a box that lacks so much."""

    def __init__(self) -> None:
        self.budget = Budget(100 * MIB)
        self.budget.reserve("a", {"resident": 100 * MIB})
        self.models = Models(self.budget)
        self.lacking: int | None = -200 * MIB
        self.now = 0.0
        self.compiling: list[bool] = []
        self.relieving = Relieving(
            *(self.models, self.budget, no_events, lambda: self.lacking),
            end_compiling=lambda: self.compiling.pop() if self.compiling else False,
            clock=lambda: self.now,
        )

    async def after(self, seconds: float) -> None:
        self.now += seconds
        await self.relieving.step()


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_models_give_back_what_lacks_and_grow_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scene = Scene()

    async def scenario() -> None:
        await scene.after(1.0)
        assert not caplog.messages
        scene.lacking = 20 * MIB
        await scene.after(1.0)
        assert scene.budget.used_bytes == scene.budget.ceiling_bytes == 80 * MIB
        scene.lacking = -200 * MIB
        await scene.after(1.0)
        assert not scene.models.eased
        await scene.after(30.0)
        assert scene.models.eased == [90 * MIB]

    run(scenario())
    assert caplog.messages == [
        "memory is scarce (headroom): models gave back 20.0 MiB in 0.0 s and may use 80.0 MiB of "
        "100.0 MiB",
        "memory is free again: models may use 90.0 MiB of 100.0 MiB",
    ]
    counted = scene.relieving
    assert (counted.lowered, counted.raised, counted.released_bytes) == (1, 1, 20 * MIB)


def test_what_stays_above_the_ceiling_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.models.min_bytes = 95 * MIB

    async def scenario() -> None:
        scene.lacking = 20 * MIB
        for _ in range(20):
            await scene.after(1.0)

    run(scenario())
    (message,) = caplog.messages
    assert "gave back 5.0 MiB" in message
    assert "15.0 MiB above it stay: no model can do with less" in message
    assert scene.budget.exceeded_bytes == 15 * MIB


def test_models_search_for_better_plans_within_the_ceiling_after_pressure() -> None:
    scene = Scene()

    async def scenario() -> None:
        scene.lacking = 20 * MIB
        await scene.after(1.0)
        scene.lacking = 0  # as much is free as shall be, and no more
        await scene.after(30.0)
        await scene.after(30.0)
        assert scene.models.eased == [80 * MIB]

    run(scenario())


def test_what_compiles_ends_before_models_release_memory() -> None:
    scene = Scene()
    scene.compiling = [True]

    async def scenario() -> None:
        await scene.after(1.0)
        assert scene.compiling
        scene.lacking = 20 * MIB
        await scene.after(1.0)
        assert scene.budget.used_bytes == 100 * MIB
        await scene.after(1.0)
        assert scene.budget.used_bytes == 80 * MIB

    run(scenario())
    assert not scene.compiling


def fifo_events(path: Path) -> Callable[[], PressureEvents]:
    os.mkfifo(path)
    flags = os.O_RDWR | os.O_NONBLOCK
    return lambda: PressureEvents(str(path), os.open(path, flags), is_psi=False)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("fails", [None, RuntimeError("a fault"), NotServingError("the end")])
def test_an_event_is_followed_on_a_loop(tmp_path: Path, fails: Exception | None) -> None:
    """It goes on after errors, ends with the server, and leaves nothing open when it is cancelled."""
    before = open_files()

    async def scenario() -> None:
        scene = Scene()
        scene.models.fails = fails
        events = fifo_events(tmp_path / "fifo")
        follows = Relieving(scene.models, scene.budget, events, None)
        task = asyncio.create_task(follows.run())
        await asyncio.sleep(0)
        assert follows.signals == f"events of {tmp_path / 'fifo'}"
        (tmp_path / "fifo").write_bytes(b"x")
        await scene.models.requested.wait()
        if isinstance(fails, NotServingError):
            await task
        task.cancel()
        await asyncio.wait({task})
        assert follows.heard == 1
        assert scene.budget.ceiling_bytes < scene.budget.total_bytes

    run(scenario())
    assert open_files() == before


class _Psi(PressureEvents):
    """Events of a plain file, which cannot be waited on."""

    def begin(self, loop: object, heard: Callable[[], None]) -> None:
        """Report nothing by itself."""


@pytest.mark.parametrize(("stalled", "n_bytes"), [(0.06, 50 * MIB), (0.04, 87.5 * MIB)])
def test_a_lasting_shortage_needs_no_further_event(
    tmp_path: Path, stalled: float, n_bytes: float
) -> None:
    """An event gives an eighth back; then tasks wait for memory so much of each half second."""
    file, now = tmp_path / "memory.pressure", [100.0]
    scene = Scene()

    def open_file() -> PressureEvents:
        return _Psi(str(file), os.open(file, os.O_RDONLY), is_psi=True)

    def write() -> None:
        total = int(1e6 * stalled * (now[0] - 100.0) / 0.5)
        file.write_text(f"some avg10=1.00 avg60=0.00 avg300=0.00 total={total}\nfull total=0\n")

    async def scenario() -> None:
        follows = Relieving(scene.models, scene.budget, open_file, None, clock=lambda: now[0])
        task = asyncio.create_task(follows.run())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        follows.hear()
        for _ in range(10):
            now[0] += 0.5
            write()
            await follows.step()

    write()
    run(scenario())
    assert scene.budget.used_bytes == pytest.approx(n_bytes, rel=0.05)


@pytest.mark.parametrize("switches", range(8))
def test_it_may_be_cancelled_at_any_await(switches: int, tmp_path: Path) -> None:
    before = open_files()

    async def scenario() -> None:
        scene = Scene()
        scene.lacking = 20 * MIB
        events = fifo_events(tmp_path / "fifo")
        follows = Relieving(scene.models, scene.budget, events, lambda: scene.lacking)
        task = asyncio.create_task(follows.run())
        for _ in range(switches):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert scene.budget.used_bytes in {80 * MIB, 100 * MIB}

    run(scenario())
    assert open_files() == before


def test_the_setting_and_the_service_manager_say_what_is_followed(tmp_path: Path) -> None:
    scene = Scene()
    os.mkfifo(tmp_path / "fifo")
    named = {"MEMORY_PRESSURE_WATCH": str(tmp_path / "fifo")}
    off = {"MEMORY_PRESSURE_WATCH": "/dev/null"}
    wrong = {
        "MEMORY_PRESSURE_WATCH": "/no/such",
        "MEMORY_PRESSURE_WRITE": base64.b64encode(b"x").decode(),
    }

    def signals(setting: Any, environ: dict[str, str]) -> str | None:
        follows = relieving(scene.models, scene.budget, RequestMemory(0), bool, setting, environ)
        return None if follows is None else asyncio.run(_signals_of(follows))

    fifo = f"events of {tmp_path / 'fifo'}"
    assert signals("auto", named) == f"{fifo} and headroom"
    assert signals("events", named) == fifo
    assert signals("headroom", named) == "headroom"
    assert signals("off", named) is None
    assert signals("auto", off) is None
    assert signals("headroom", off) == "headroom"
    assert signals("auto", wrong) == "headroom"


async def _signals_of(follows: Relieving) -> str:
    """Return what it follows, once it has begun."""
    task = asyncio.create_task(follows.run())
    await asyncio.sleep(0)
    signals = follows.signals
    task.cancel()
    await asyncio.wait({task})
    return signals
