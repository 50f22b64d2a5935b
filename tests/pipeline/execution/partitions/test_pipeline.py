"""Partitions at once: the same bits, and a frame that is cancelled, late or fails goes alone."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loader.cores import allowed_cores, cores_for
from loader.errors import ReadError
from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from models.packs.target import host_target
from pipeline.devices.base import KernelError
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import Memory, address
from pipeline.execution.errors import CancelledError, DeadlineError, EngineClosedError
from pipeline.execution.opened import open_pipeline, opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, PartitionedPlan, partitioned
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RowCut
from pipeline.program.row_network import RowNetwork
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import examples
from tests.models.nets import CHUNK_BYTES, concat, parsed
from tests.pipeline.execution.hooked import HookedDevice
from tests.pipeline.small import small_pack

LIMIT_SECONDS = 30.0
Arrays = dict[str, NDArray[Any]]


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pack]:
    folder = Path(tmp_path_factory.mktemp("repository"))
    found = {"small": open_pack(small_pack(folder))}
    for name, model in (("concat", concat()), ("early", early())):
        onnx.save(model, folder / f"{name}.onnx")
        options = CompileOptions(chunk_bytes=CHUNK_BYTES)
        found[name] = open_pack(compile_onnx(folder / f"{name}.onnx", folder / name, options))
    return found


def early() -> onnx.ModelProto:
    """An output that is made first, an input that is read last: both cross every cut."""
    return parsed(
        """early (float[1,64,6,6] x) => (float[1,64,6,6] a, float[1,64,6,6] y) {
            a = Conv<pads=[1,1,1,1]>(x, u)
            b = Conv<pads=[1,1,1,1]>(a, v)
            c = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(b)
            d = Conv<pads=[1,1,1,1]>(c, w)
            y = Mul(d, x)
        }""",
        {"u": (64, 64, 3, 3), "v": (64, 64, 3, 3), "w": (64, 64, 3, 3)},
    )


def planned(pack: Pack, cuts: Sequence[int], copied: bool = False) -> PartitionedPlan:
    """Return small rings for each partition; the last one's weights are ``copied`` before use."""
    places = Cuts(Program.as_compiled(pack))
    parts = places.parts(cuts)
    names = ["2s"] * len(cuts) + ["async-md" if copied else "2s"]
    plans = [
        make_plan(part, ARCHITECTURES[name], choice=Choice(64 << 10))
        for part, name in zip(parts, names, strict=True)
    ]
    return partitioned(plans, cuts, [places.edge_bytes(cut) for cut in cuts])


class Opened:
    """A pipeline over an in-memory file; weights of the last partition are ``copied`` as a GPU's are."""

    def __init__(self, pack: Pack, cuts: Sequence[int], copied: bool = False) -> None:
        self.pack = pack
        self.devices = [HookedDevice() for _ in range(len(cuts) + 1)]
        self.pool = ReadPool()
        weights = pack.weights_path.read_bytes()
        self.pipeline = open_pipeline(
            Program.as_compiled(pack),
            planned(pack, cuts, copied),
            self.devices,
            self.pool,
            lambda: MemoryReader(weights),
            cores=cores_for(len(self.devices)),
        )

    def close(self) -> None:
        self.pipeline.close()
        for device in self.devices:
            device.close()
        self.pool.close()


def inputs(pack: Pack, seed: int) -> Arrays:
    generator = np.random.default_rng(seed)
    return {
        port.name: generator.standard_normal(port.shape).astype(port.dtype)
        for port in Program.as_compiled(pack).inputs
    }


def expected(pack: Pack, seeds: Sequence[int]) -> list[Arrays]:
    """What the whole network answers."""
    program = Program.as_compiled(pack)
    plan = make_plan(program, ARCHITECTURES["pre"])
    with opened(program, plan, CpuDevice(1)) as engine:
        return [engine.run(inputs(pack, seed))[0] for seed in seeds]


def same(one: Arrays, other: Arrays) -> bool:
    return list(one) == list(other) and all(
        one[name].tobytes() == other[name].tobytes() for name in one
    )


@pytest.fixture
def halves(packs: dict[str, Pack]) -> Iterator[Opened]:
    pack = packs["small"]
    places = Cuts(Program.as_compiled(pack)).places
    held = Opened(pack, [places[len(places) // 2]])
    yield held
    held.close()


@pytest.mark.parametrize("name", ["small", "concat", "early"])
def test_any_cut_gives_the_same_bits(packs: dict[str, Pack], name: str) -> None:
    pack = packs[name]
    (answer,) = expected(pack, [1])
    places = Cuts(Program.as_compiled(pack)).places
    assert places
    cuts = [[place] for place in places] + [list(places)]
    for chosen in cuts:
        held = Opened(pack, chosen)
        assert same(held.pipeline.run(inputs(pack, 1))[0], answer), chosen
        held.close()


def test_rows_on_both_sides_of_a_cut_give_the_same_answer(packs: dict[str, Pack]) -> None:
    """A region that reads what crosses takes its rows from the edge; one that makes it writes it whole."""
    pack = packs["small"]
    (answer,) = expected(pack, [1])
    places = Cuts(Program.as_compiled(pack))
    checked = 0
    for cut in places.places:
        parts = places.parts([cut])
        regions = [_region(part) for part in parts]
        if None in regions:
            continue
        plans = [
            make_plan(part, ARCHITECTURES["pre"], choice=Choice(regions=(region,)))
            for part, region in zip(parts, regions, strict=True)
            if region is not None
        ]
        plan = partitioned(plans, [cut], [places.edge_bytes(cut)])
        pool, device = ReadPool(), CpuDevice(1)
        pipeline = open_pipeline(Program.as_compiled(pack), plan, [device, device], pool)
        found = pipeline.run(inputs(pack, 1))[0]
        if host_target().block > 1:
            assert same(found, answer)
        else:  # sums of plain convolutions are divided by how many rows there are
            for name, array in answer.items():
                np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5)
        pipeline.close()
        pool.close()
        checked += 1
    assert checked


def _region(part: Program) -> Region | None:
    """Return a region from the first row operator of ``part`` to the end of what follows it."""
    runs = RowNetwork(part).runs
    return Region(runs[0].start, runs[0].stop, RowCut(2)) if runs else None


@pytest.mark.parametrize("copied", [False, True])
def test_frames_at_once_have_their_own_bits(packs: dict[str, Pack], copied: bool) -> None:
    """The second partition may be another device, with copies of its weights, as of a GPU."""
    pack = packs["small"]
    places = Cuts(Program.as_compiled(pack)).places
    held = Opened(pack, [places[len(places) // 2]], copied)
    seeds = list(range(12))
    with ThreadPoolExecutor(held.pipeline.callers) as threads:
        answers = list(threads.map(lambda seed: held.pipeline.run(inputs(pack, seed))[0], seeds))
    assert all(map(same, answers, expected(pack, seeds)))
    statistics = held.pipeline.statistics()
    assert statistics.sweeps == len(seeds)
    planned_bytes = held.pipeline.plan.memory
    assert statistics.memory["arena"] <= planned_bytes["arena"]
    assert statistics.memory["ring"] <= planned_bytes["ring"]
    held.close()


def test_two_frames_are_in_two_partitions_at_the_same_moment(halves: Opened) -> None:
    """Each waits in its kernel for the other: only frames side by side get on."""
    both = threading.Barrier(2)
    met: list[bool] = []

    def meet(device: HookedDevice) -> Callable[[int], None]:
        def before(number: int) -> None:
            frame, first = divmod(number, kernels[device])
            if first == 0 and (device is front) == (frame == 1) and frame < 2:
                met.append(both.wait(LIMIT_SECONDS) >= 0)

        return before

    front = halves.devices[0]
    halves.pipeline.run(inputs(halves.pack, 0))
    kernels = {device: device.launched for device in halves.devices}
    for device in halves.devices:
        device.launched = 0
        device.before = meet(device)
    with ThreadPoolExecutor(2) as threads:
        answers = threads.map(
            lambda seed: halves.pipeline.run(inputs(halves.pack, seed))[0], [1, 2]
        )
        assert all(map(same, answers, expected(halves.pack, [1, 2])))
    assert met == [True, True], "the first in the back met the second in the front"


@pytest.mark.parametrize("partition", [0, 1])
@pytest.mark.parametrize("how", [CancelledError, KernelError])
def test_a_frame_that_ends_early_leaves_the_others_right(
    halves: Opened, partition: int, how: type[Exception]
) -> None:
    """At each kernel of each partition: the frame has its error, the one beside it its answer."""
    pipeline, pack, device = halves.pipeline, halves.pack, halves.devices[partition]
    answers = expected(pack, [1, 2])
    assert same(pipeline.run(inputs(pack, 1))[0], answers[0])
    count, front = device.launched, halves.devices[0]
    for at in range(count):
        gone, entered = threading.Event(), threading.Event()
        first, victim = front.launched, device.launched + at

        def began(number: int, first: int = first, entered: threading.Event = entered) -> None:
            if number == first:
                entered.set()

        def before(
            number: int,
            began: Callable[[int], None] = began,
            victim: int = victim,
            gone: threading.Event = gone,
        ) -> None:
            if device is front:
                began(number)
            if number == victim:  # of the first frame: frames keep their order
                gone.set()
                if how is KernelError:
                    raise KernelError("broken")

        def second(entered: threading.Event = entered) -> Arrays:
            assert entered.wait(LIMIT_SECONDS)
            return pipeline.run(inputs(pack, 2))[0]

        front.before = began
        device.before = before
        with ThreadPoolExecutor(1) as threads:
            beside = threads.submit(second)
            if how is CancelledError and partition == 1 and at == count - 1:
                assert same(pipeline.run(inputs(pack, 1), None, gone.is_set)[0], answers[0]), "done"
            else:
                with pytest.raises(how):
                    pipeline.run(inputs(pack, 1), None, gone.is_set)
            assert same(beside.result(LIMIT_SECONDS), answers[1])
        assert gone.is_set()
        assert pipeline.frames == 0
    front.before = device.before = lambda number: None
    assert same(pipeline.run(inputs(pack, 1))[0], answers[0])


class Held:
    """Keeps the first kernel of ``device`` that is launched until ``open``."""

    def __init__(self, device: HookedDevice) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()
        first = device.launched
        device.before = lambda number: self._hold() if number == first else None

    def _hold(self) -> None:
        self._reached.set()
        assert self._opened.wait(LIMIT_SECONDS)

    def reached(self) -> None:
        assert self._reached.wait(LIMIT_SECONDS)

    def open(self) -> None:
        self._opened.set()


@pytest.mark.parametrize("partition", [0, 1])
def test_a_frame_that_waits_for_a_partition_may_leave(halves: Opened, partition: int) -> None:
    """Cancelled, late, or turned away since the pipeline closes; frames that run go on."""
    pipeline, pack = halves.pipeline, halves.pack
    answers = expected(pack, [1, 2])
    held = Held(halves.devices[partition])
    gone = threading.Event()
    with ThreadPoolExecutor(3) as threads:
        first = threads.submit(lambda: pipeline.run(inputs(pack, 1))[0])
        held.reached()
        with pytest.raises(DeadlineError):
            pipeline.run(inputs(pack, 2), time.monotonic() + 0.01)
        second = threads.submit(lambda: pipeline.run(inputs(pack, 2), None, gone.is_set)[0])
        while pipeline.frames < 2:
            time.sleep(0)
        gone.set()
        pipeline.wake()
        with pytest.raises(CancelledError):
            second.result(LIMIT_SECONDS)
        assert pipeline.frames == 1
        closing = threads.submit(pipeline.close)
        while not pipeline.closed:
            time.sleep(0)
        with pytest.raises(EngineClosedError):
            pipeline.run(inputs(pack, 2))
        held.open()
        assert same(first.result(LIMIT_SECONDS), answers[0])
        closing.result(LIMIT_SECONDS)


@pytest.mark.parametrize("partition", [0, 1])
def test_an_interrupt_ends_the_frame_of_the_main_thread_alone(
    halves: Opened, partition: int
) -> None:
    """While a kernel of it runs: the partition ends it first, and goes on with the next one."""
    pipeline, pack, device = halves.pipeline, halves.pack, halves.devices[partition]
    answers = expected(pack, [1, 2])
    main, seen, first = threading.main_thread().ident, threading.Event(), device.launched
    assert main is not None

    def interrupted(number: int, frame: object) -> None:
        seen.set()
        raise KeyboardInterrupt

    def before(number: int) -> None:
        if number == first:
            signal.pthread_kill(main, signal.SIGINT)
            assert seen.wait(LIMIT_SECONDS)

    kept = signal.signal(signal.SIGINT, interrupted)
    try:
        device.before = before
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(inputs(pack, 1))
    finally:
        signal.signal(signal.SIGINT, kept)
    assert pipeline.frames == 0
    with ThreadPoolExecutor(1) as threads:
        beside = threads.submit(lambda: pipeline.run(inputs(pack, 2))[0])
        assert same(beside.result(LIMIT_SECONDS), answers[1])


def test_a_read_that_fails_ends_its_frame_alone(packs: dict[str, Pack]) -> None:
    pack = packs["small"]
    places = Cuts(Program.as_compiled(pack)).places
    cut = places[len(places) // 2]
    (answer,) = expected(pack, [1])
    weights = pack.weights_path.read_bytes()
    broken: list[bool] = []

    def before(offset: int, length: int) -> None:
        if broken:
            broken.clear()
            raise ReadError("the disk is gone for a moment")

    pool, device = ReadPool(), CpuDevice(1)
    pipeline = open_pipeline(
        Program.as_compiled(pack),
        planned(pack, [cut]),
        [device, device],
        pool,
        lambda: MemoryReader(weights, before),
    )
    assert same(pipeline.run(inputs(pack, 1))[0], answer)
    broken.append(True)
    with pytest.raises(ReadError):
        pipeline.run(inputs(pack, 1))
    assert same(pipeline.run(inputs(pack, 1))[0], answer)
    assert pipeline.frames == 0
    pipeline.close()
    pool.close()


@examples(8, 60)
@given(st.data())
def test_partitions_share_no_memory(packs: dict[str, Pack], data: st.DataObject) -> None:
    """Algorithm 1 of seed 000: no buffer is of two partitions of one J; an edge between them has two."""
    pack = packs[data.draw(st.sampled_from(sorted(packs)))]
    places = Cuts(Program.as_compiled(pack))
    cuts = sorted(data.draw(st.sets(st.sampled_from(places.places), min_size=1)))
    held = Opened(pack, cuts)
    owners: list[tuple[int, int]] = []
    for engine in held.pipeline._engines:
        memory = engine._memory
        held_by = (memory.ring, memory.resident, memory.lease.memory)
        owners += [_range(part) for part in held_by if part.n_bytes]
    edges = held.pipeline._edges
    assert edges.n_bytes == held.pipeline.plan.edge_bytes
    for edge, cut in enumerate(cuts):
        buffers = [edges.buffer(edge, number) for number in range(2)]
        assert all(len(buffer) == len(places.crossing(cut)) for buffer in buffers)
        for buffer in buffers:
            for array in buffer.values():
                start = array.ctypes.data
                owners.append((start, start + array.nbytes))
    owners.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(owners))
    held.close()


def _range(memory: Memory) -> tuple[int, int]:
    start = address(memory.host(0, memory.n_bytes))
    return start, start + memory.n_bytes


def test_each_partition_computes_on_its_core(halves: Opened) -> None:
    """And the calling thread keeps its cores."""
    if len(allowed_cores()) < 2:
        pytest.skip("one core")
    seen: list[set[int]] = [set(), set()]
    for number, device in enumerate(halves.devices):
        device.before = lambda _, number=number: seen[number].update(allowed_cores())  # type: ignore[misc]
    before = allowed_cores()
    halves.pipeline.run(inputs(halves.pack, 1))
    assert seen == [{core} for core in cores_for(2)]
    assert allowed_cores() == before
