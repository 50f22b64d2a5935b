"""Several requests in one sweep: same answers, weights read once, and one that stops stops alone."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from loader.errors import ReadError
from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.packs.pack import Pack, open_pack
from pipeline.devices.base import DeviceLostError, KernelError
from pipeline.devices.device_memory import Space
from pipeline.execution.engine import Engine
from pipeline.execution.errors import (
    ArenaLostError,
    CancelledError,
    DeadlineError,
    DrainError,
    InputError,
)
from pipeline.execution.lane import Lane, LaneRun
from pipeline.execution.leases import SharedArena
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RowCut
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.execution.hooked import HookedDevice
from tests.pipeline.small import small_pack
from tests.pipeline.writes import arena_weights

LANES = 8
LIMIT_SECONDS = 30.0
REGIONS = (Region(0, 2, RowCut(2)), Region(2, 5, RowCut(1)))
MODES = ["cancelled", "late", "kernel", "input"]
Tensor = NDArray[np.float32]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return open_pack(small_pack(Path(tmp_path_factory.mktemp("repository"))))


@dataclass(frozen=True)
class Opening:
    """How an engine is opened: what runs on rows; whether its weights are copied before use."""

    choice: Choice
    copied: bool = False


class Opened:
    """An engine with lanes over an in-memory file."""

    def __init__(
        self,
        pack: Pack,
        lanes: int = LANES,
        arena: SharedArena | None = None,
        choice: Choice | None = None,
        copied: bool = False,
    ) -> None:
        program = Program.as_compiled(pack)
        self.device, self.pool = HookedDevice(lanes), ReadPool()
        self.reader = MemoryReader(pack.weights_path.read_bytes())
        chosen = replace(choice or Choice(64 << 10), lanes=lanes)
        architecture = ARCHITECTURES["async-md" if copied else "2s"]
        self.plan = make_plan(program, architecture, choice=chosen)
        lease = None if arena is None else arena.join(self.plan.arena_bytes)
        self.engine = Engine(program, self.plan, self.device, self.pool, self.reader, lease=lease)
        self.engine.open()

    def close(self) -> None:
        self.engine.close()
        self.device.close()
        self.pool.close()


@pytest.fixture
def opened(pack: Pack) -> Iterator[Opened]:
    opened = Opened(pack)
    yield opened
    opened.close()


def image(seed: int) -> Tensor:
    return np.random.default_rng(seed).standard_normal((1, 3, 16, 16), np.float32)


def alone(pack: Pack, choice: Choice | None = None, copied: bool = False) -> list[Tensor]:
    """Return what requests get one after the other."""
    opened = Opened(pack, 1, choice=choice, copied=copied)
    answers = [opened.engine.run({"image": image(seed)})[0]["logits"] for seed in range(LANES)]
    opened.close()
    return answers


@pytest.fixture(scope="module")
def expected(pack: Pack) -> list[Tensor]:
    return alone(pack)


def answer(found: Any) -> Tensor:
    assert not isinstance(found, Exception), found
    logits: Tensor = found[0]["logits"]
    return logits


def test_the_plan_counts_lanes(pack: Pack) -> None:
    plans = [
        make_plan(
            Program.as_compiled(pack), ARCHITECTURES["2s"], choice=Choice(64 << 10, lanes=lanes)
        )
        for lanes in (1, LANES)
    ]
    one, many = plans
    assert one.lane_bytes <= many.lane_bytes < one.lane_bytes + 4096
    assert many.arena_bytes == LANES * many.lane_bytes
    assert many.io_bytes == LANES * one.io_bytes
    assert one.session_bytes < many.session_bytes < LANES * one.session_bytes
    for kind in ("ring", "resident", "staging", "scratch"):
        assert many.memory[kind] == one.memory[kind]
    assert many.total_bytes == sum(many.memory.values())


@pytest.mark.parametrize("count", [1, 3, LANES])
def test_each_lane_has_its_own_answer_and_weights_are_read_once(
    opened: Opened, expected: list[Tensor], count: int
) -> None:
    for _ in range(2):
        found = opened.engine.run_lanes([Lane({"image": image(seed)}) for seed in range(count)])
        for seed, each in enumerate(found):
            assert np.array_equal(answer(each), expected[seed])
    assert opened.engine.statistics().read_bytes == 2 * opened.plan.read_bytes
    assert opened.engine.statistics().sweeps == 2
    assert opened.device.launched == 2 * count * len(opened.plan.steps)
    assert opened.engine.statistics().memory["arena"] == opened.plan.arena_bytes


@pytest.mark.parametrize("in_arena", [False, True])
def test_lanes_on_rows_give_the_same_bits(pack: Pack, in_arena: bool) -> None:
    """Strips of a region lie in each lane's own arena; phases run for all lanes before the next one."""
    choice = Choice(regions=(Region(0, 2, RowCut(2), in_arena),))
    opened, expected = Opened(pack, 3, choice=choice), alone(pack, choice)
    assert len(opened.plan.steps) > len(Program.as_compiled(pack).pieces)
    assert bool(arena_weights(opened.plan)) == in_arena
    found = opened.engine.run_lanes([Lane({"image": image(seed)}) for seed in range(3)])
    for seed, each in enumerate(found):
        np.testing.assert_array_equal(answer(each), expected[seed])
    opened.close()


def test_a_request_alone_runs_in_an_engine_with_lanes(
    opened: Opened, expected: list[Tensor]
) -> None:
    assert np.array_equal(opened.engine.run({"image": image(3)})[0]["logits"], expected[3])
    with pytest.raises(InputError):
        opened.engine.run({})


@pytest.mark.parametrize("count", [0, LANES + 1])
def test_more_lanes_than_planned_are_refused(opened: Opened, count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} lanes, planned were 1 to {LANES}"):
        opened.engine.run_lanes([Lane({"image": image(0)})] * count)


@pytest.mark.parametrize("at", [0, 1, -1], ids=["first", "second", "last"])
@pytest.mark.parametrize("mode", MODES)
def test_a_lane_that_stops_leaves_the_other_seven_right(
    opened: Opened, expected: list[Tensor], mode: str, at: int
) -> None:
    """Lane 5 stops at step ``at`` of the sweep, or before it."""
    number = range(len(opened.plan.steps))[at] * LANES + 5
    stopped = threading.Event()

    def before(launched: int) -> None:
        if launched == number and mode == "kernel":
            raise KernelError("no such instruction")
        if launched == number - 5:
            stopped.set()

    opened.device.before = before
    lanes = [Lane({"image": image(seed)}) for seed in range(LANES)]
    lanes[5] = {
        "cancelled": Lane(lanes[5].inputs, cancelled=stopped.is_set),
        "late": Lane(lanes[5].inputs, deadline=0.0),
        "kernel": lanes[5],
        "input": Lane({"image": image(5)[:, :2]}),
    }[mode]
    kind = {"cancelled": CancelledError, "late": DeadlineError, "kernel": KernelError}
    found = opened.engine.run_lanes(lanes)
    for seed, each in enumerate(found):
        if seed == 5:
            assert isinstance(each, kind.get(mode, InputError))
        else:
            assert np.array_equal(answer(each), expected[seed])
    opened.device.before = lambda launched: None
    again = opened.engine.run_lanes([Lane({"image": image(seed)}) for seed in range(LANES)])
    assert [np.array_equal(answer(each), expected[i]) for i, each in enumerate(again)] == [True] * 8


PROGRAMS = {
    "whole": Opening(Choice(64 << 10)),
    "regions": Opening(Choice(160 << 10, regions=REGIONS)),
    "regions of copied weights": Opening(Choice(160 << 10, regions=REGIONS), copied=True),
}
STOPPED = 5


@pytest.fixture(params=PROGRAMS)
def opening(request: pytest.FixtureRequest) -> Opening:
    return PROGRAMS[request.param]


@pytest.fixture
def program(opening: Opening, pack: Pack) -> Iterator[Opened]:
    opened = Opened(pack, choice=opening.choice, copied=opening.copied)
    yield opened
    opened.close()


@pytest.fixture
def expected_alone(opening: Opening, pack: Pack) -> list[Tensor]:
    return alone(pack, opening.choice, opening.copied)


def others_are_right(opened: Opened, expected: list[Tensor], stopped: Lane) -> object:
    """Run ``stopped`` as one of eight lanes, and return what becomes of it; the others are right."""
    lanes = [Lane({"image": image(seed)}) for seed in range(LANES)]
    lanes[STOPPED] = stopped
    found = opened.engine.run_lanes(lanes)
    for seed in {*range(LANES)} - {STOPPED}:
        assert np.array_equal(answer(found[seed]), expected[seed])
    return found[STOPPED]


def test_a_kernel_of_one_lane_that_fails_anywhere(
    program: Opened, expected_alone: list[Tensor]
) -> None:
    """At each of its kernels: also in the middle of a region, and of a phase of it."""
    lane = Lane({"image": image(STOPPED)})
    count = failing = -1

    def before(launched: int) -> None:
        nonlocal count
        if program.device.lane == STOPPED:
            count += 1
            if count == failing:
                raise KernelError("no such instruction")

    program.device.before = before
    program.engine.run_lanes([lane] * LANES)
    kernels = count + 1
    assert kernels >= len(program.plan.steps)
    for failing in range(0, kernels, max(kernels // 10, 1)):
        count = -1
        assert isinstance(others_are_right(program, expected_alone, lane), KernelError)
        assert count == failing  # and nothing more is computed for it
    count, failing = -1, kernels
    found = program.engine.run_lanes([lane] * LANES)
    assert all(np.array_equal(answer(each), expected_alone[STOPPED]) for each in found)


def test_a_client_that_goes_whenever_it_is_asked(
    program: Opened, expected_alone: list[Tensor]
) -> None:
    asked, last = 0, 1 << 30

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > last

    lane = Lane({"image": image(STOPPED)}, cancelled=cancelled)
    assert np.array_equal(answer(program.engine.run_lanes([lane])[0]), expected_alone[STOPPED])
    asks = asked
    assert asks > len(program.plan.steps)
    for last in range(0, asks, max(asks // 10, 1)):
        asked = 0
        found = others_are_right(program, expected_alone, lane)
        # Once a step at least, and when a sweep has waited for a read, which is another time each time.
        assert asked == last + 1 or (last > len(program.plan.steps) and asked <= last)
        assert isinstance(found, CancelledError) == (asked > last)
    assert program.reader.in_progress == 0


def test_a_sweep_that_nobody_waits_for_ends(opened: Opened, expected: list[Tensor]) -> None:
    gone = threading.Event()
    opened.device.before = lambda launched: gone.set() if launched == 20 else None
    lanes = [Lane({"image": image(seed)}, cancelled=gone.is_set) for seed in range(LANES)]
    found = opened.engine.run_lanes(lanes)
    assert [type(each) for each in found] == [CancelledError] * LANES
    assert 20 < opened.device.launched <= 20 + LANES
    assert opened.reader.in_progress == 0
    opened.device.before = lambda launched: None
    assert np.array_equal(opened.engine.run({"image": image(0)})[0]["logits"], expected[0])


def test_a_read_that_fails_is_the_error_of_all_but_those_that_stopped_before(
    opened: Opened,
) -> None:
    def fail(offset: int, length: int) -> None:
        raise ReadError("weights.bin: Input/output error")

    opened.reader.hook = fail
    lanes = [Lane({"image": image(seed)}) for seed in range(3)]
    found = opened.engine.run_lanes([Lane({}), *lanes])
    assert [type(each) for each in found] == [InputError, ReadError, ReadError, ReadError]


def test_a_lost_device_ends_all_lanes(opened: Opened) -> None:
    def before(launched: int) -> None:
        if launched == 3:
            raise DeviceLostError("gone")

    opened.device.before = before
    found = opened.engine.run_lanes([Lane({"image": image(seed)}) for seed in range(LANES)])
    assert [type(each) for each in found] == [DeviceLostError] * LANES
    assert opened.engine.broken.endswith("gone")


def test_the_sweep_is_of_use_until_the_last_deadline() -> None:
    assert LaneRun([Lane({}, 3.0), Lane({}, 5.0)]).deadline == 5.0
    assert LaneRun([Lane({}, 3.0), Lane({})]).deadline is None


def test_engines_that_share_an_arena_take_turns(pack: Pack, expected: list[Tensor]) -> None:
    """Two engines, four threads; no sweep disturbs another, and none runs beside another."""
    arena = SharedArena(Space(16 << 20))
    engines = [Opened(pack, 2, arena) for _ in range(2)]
    assert arena.n_bytes == engines[0].plan.arena_bytes
    right: list[bool] = []

    def work(number: int) -> None:
        for seed in range(LANES):
            logits = engines[number % 2].engine.run({"image": image(seed)})[0]["logits"]
            right.append(np.array_equal(logits, expected[seed]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 4 * LANES
    for each in engines:
        each.close()
    assert arena.members == arena.n_bytes == 0
    arena.close()


def test_a_request_waits_for_its_turn_no_longer_than_it_may(
    pack: Pack, expected: list[Tensor]
) -> None:
    arena = SharedArena(Space(16 << 20))
    one, other = Opened(pack, 1, arena), Opened(pack, 1, arena)
    reached, go_on = threading.Event(), threading.Event()

    def before(launched: int) -> None:
        reached.set()
        assert go_on.wait(30)

    one.device.before = before
    answers: list[Any] = []
    thread = threading.Thread(
        target=lambda: answers.append(one.engine.run({"image": image(0)})[0]["logits"])
    )
    thread.start()
    assert reached.wait(30)
    with pytest.raises(DeadlineError, match="another model"):
        other.engine.run({"image": image(1)}, deadline=time.monotonic())
    with pytest.raises(CancelledError):
        other.engine.run({"image": image(1)}, cancelled=lambda: True)
    assert other.device.launched == 0
    go_on.set()
    thread.join()
    logits, statistics = other.engine.run({"image": image(1)})
    assert np.array_equal(logits["logits"], expected[1])
    assert statistics.turn_seconds >= 0
    assert np.array_equal(answers[0], expected[0])
    for each in (one, other):
        each.close()
    arena.close()


@pytest.mark.parametrize(
    ("in_arena", "first_hangs", "lost"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_only_a_read_into_the_arena_that_never_ends_loses_it(
    pack: Pack, monkeypatch: pytest.MonkeyPatch, in_arena: bool, first_hangs: bool, lost: bool
) -> None:
    """The first read brings the weights of a region, the others pass the ring."""
    monkeypatch.setattr("pipeline.execution.deadlines.DRAIN_SECONDS", 0.1)
    arena, goes_on = SharedArena(Space(1 << 20)), threading.Event()
    choice = Choice(regions=(Region(0, 2, RowCut(2), in_arena),))
    opened = Opened(pack, 1, arena, choice)
    last = Program.as_compiled(pack).spans[opened.plan.reads[0].spans[-1]]
    end = last.offset + last.length

    def hang(offset: int, length: int) -> None:
        if (offset < end) == first_hangs:
            goes_on.wait(LIMIT_SECONDS)

    opened.reader.hook = hang
    with pytest.raises(DrainError, match="memory: "):
        opened.engine.run({"image": image(0)})
    if lost:
        with pytest.raises(ArenaLostError):
            arena.join(4096)
    else:
        arena.join(4096).close()
    goes_on.set()
    opened.close()
    arena.close()
