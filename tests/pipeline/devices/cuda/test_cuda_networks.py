"""Whole networks on the CUDA device: every architecture and memory kind gives the bits of ``pre``."""

import gc
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from loader.errors import ReadError
from loader.pool.pool import ReadPool
from loader.readers.fakes import MemoryReader
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from models.packs.target import cuda_target
from models.zoo.builder import SkeletonBuilder
from pipeline.devices.base import DeviceLostError
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.cuda.device import CudaDevice
from pipeline.devices.cuda.driver import CudaMemoryError, Driver
from pipeline.devices.find import device_measure
from pipeline.devices.names import KINDS, Kind
from pipeline.execution.engine import Engine
from pipeline.execution.opened import opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.models.nets import filled
from tests.pipeline.devices.cuda.driving import ON_GPU, driver_of
from tests.pipeline.devices.cuda.fake_driver import XAVIER, FakeDriver
from tests.pipeline.devices.cuda.space import Kernels

SIDE = 9
TARGET = cuda_target(72)
Tensor = NDArray[np.float32]


def network() -> onnx.ModelProto:
    """Residual blocks, a branch that is concatenated, groups, depthwise, pooling, a classifier."""
    b = SkeletonBuilder("varied", SIDE)
    x = b.relu(b.norm(b.conv(b.image, 64, 3)))
    y = b.relu(b.norm(b.conv(x, 32, 1)))
    y = b.norm(b.conv(y, 64, 3))
    x = b.relu(b.add(y, x))
    x = b.concat(x, b.max_pool(x, 3, 1, 1))
    x = b.relu(b.norm(b.conv(x, 96, 3, 2)))
    x = b.relu(b.norm(b.conv(x, 96, 3, groups=96)))
    x = b.global_pool(x)
    return filled(b.model(b.linear(b.relu(b.linear(b.flatten(x), 100)), 10)), seed=3)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "varied.onnx"
    onnx.save(network(), path)
    return path


@pytest.fixture(scope="module")
def pack(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return compiled(source, tmp_path_factory.mktemp("repository"))


def compiled(source: Path, repository: Path) -> Pack:
    options = CompileOptions(chunk_bytes=8 << 10, target=TARGET, measure=device_measure(TARGET))
    return open_pack(compile_onnx(source, repository / source.stem, options), TARGET)


@pytest.fixture(scope="module")
def image() -> Tensor:
    return np.random.default_rng(5).standard_normal((1, 3, SIDE, SIDE), np.float32)


@pytest.fixture(scope="module")
def expected(source: Path, image: Tensor) -> Tensor:
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    result: Tensor = session.run(None, {"image": image})[0]
    return result


@contextmanager
def device_on(driver: Driver, kind: Kind | None = None, **options: Any) -> Iterator[CudaDevice]:
    with closing(CudaDevice(driver, CpuDevice(), kind, **options)) as device:
        yield device
    if isinstance(driver, FakeDriver):
        gc.collect()  # an error that was raised holds the frames it came through
        assert (driver.used_bytes, driver.held) == (0, 0)


@contextmanager
def engine_of(pack: Pack, plan: Plan, device: CudaDevice) -> Iterator[tuple[Engine, MemoryReader]]:
    reader = MemoryReader(pack.weights_path.read_bytes())
    with (
        closing(ReadPool()) as pool,
        opened(Program.as_compiled(pack), plan, device, pool, reader) as engine,
    ):
        yield engine, reader


def answer(pack: Pack, plan: Plan, device: CudaDevice, image: Tensor, sweeps: int = 2) -> Tensor:
    with engine_of(pack, plan, device) as (engine, _):
        results = [engine.run({"image": image})[0]["logits"] for _ in range(sweeps)]
    assert all(np.array_equal(result, results[0]) for result in results)
    first: Tensor = results[0]
    return first


@pytest.fixture(scope="module")
def preloaded(kernels: Kernels, pack: Pack, image: Tensor) -> Tensor:
    plan = make_plan(Program.as_compiled(pack), ARCHITECTURES["pre"])
    with device_on(driver_of(kernels)) as device:
        return answer(pack, plan, device, image)


def test_layers_are_cut(pack: Pack) -> None:
    """Or chunks would not be tested here."""
    cut = [layer for layer in pack.manifest.layers if layer.end_piece - layer.first_piece > 1]
    assert {"Conv+Relu", "Conv+Add+Relu"} <= {layer.operator for layer in cut}
    assert pack.manifest.alternatives


def test_preloaded_is_as_onnxruntime(preloaded: Tensor, expected: Tensor) -> None:
    error = np.abs(preloaded - expected).max() / np.abs(expected).max()
    assert error < 1e-5


@pytest.mark.parametrize(
    ("name", "kind", "rings"),
    [
        pytest.param(
            *(name, kind, rings),
            marks=()
            if (one + other) % 4 == 0 and (one % 2, rings) in ((0, 1), (1, 3))
            else pytest.mark.slow,
        )
        for one, name in enumerate(sorted(ARCHITECTURES))
        for other, kind in enumerate(KINDS)
        for rings in (1, 3)
    ],
)
def test_architectures_and_kinds_agree_in_every_bit(  # noqa: PLR0917
    kernels: Kernels,
    pack: Pack,
    image: Tensor,
    preloaded: Tensor,
    name: str,
    kind: Kind,
    rings: int,
) -> None:
    with device_on(driver_of(kernels, seed=len(name)), kind) as device:
        if kind == "managed" and not device.properties.integrated:
            pytest.skip("managed memory is for devices that share the memory of the CPU")
        architecture = device.adapt(ARCHITECTURES[name])
        ring = rings * (architecture.slots or 1) * pack.manifest.largest_chunk_bytes
        choice = Choice(None if architecture.resident else ring, ahead=architecture.ahead)
        plan = make_plan(Program.as_compiled(pack), architecture, choice=choice)
        assert np.array_equal(answer(pack, plan, device, image), preloaded)


def test_half_precision_agrees_with_itself(
    kernels: Kernels, pack: Pack, image: Tensor, expected: Tensor
) -> None:
    results = []
    with device_on(driver_of(kernels), precision="fp16") as device:
        for name in ("pre", "async"):
            plan = make_plan(Program.as_compiled(pack), device.adapt(ARCHITECTURES[name]))
            results.append(answer(pack, plan, device, image, sweeps=1))
    assert np.array_equal(results[0], results[1])
    assert np.abs(results[0] - expected).max() / np.abs(expected).max() < 2e-2


@pytest.mark.parametrize("eager", [0.0, 0.3])  # 0: nothing runs before it is waited for
def test_what_no_kernel_covers_runs_on_the_cpu(
    kernels: Kernels, image: Tensor, tmp_path: Path, eager: float
) -> None:
    b = SkeletonBuilder("mixed", SIDE)
    x = b.relu(b.norm(b.conv(b.image, 24, 3)))
    model = filled(b.model(b.linear(b.flatten(b.global_pool(x)), 10)), seed=3)
    head = model.graph.output[0].name
    model.graph.node.append(onnx.helper.make_node("Hardmax", [head], ["hard"], axis=-1))
    model.graph.output[0].name = "hard"
    onnx.save(model, tmp_path / "mixed.onnx")
    wanted = ort.InferenceSession(tmp_path / "mixed.onnx").run(None, {"image": image})[0]
    pack = compiled(tmp_path / "mixed.onnx", tmp_path)
    with device_on(driver_of(kernels, eager=eager)) as device:
        plan = make_plan(Program.as_compiled(pack), device.adapt(ARCHITECTURES["2s"]))
        with engine_of(pack, plan, device) as (engine, _):
            for _ in range(2):
                assert np.array_equal(engine.run({"image": image})[0]["hard"], wanted)


@pytest.mark.skipif(ON_GPU, reason="faults are injected into the fake driver")
@pytest.mark.parametrize("name", ["pre", "async", "2s"])
def test_a_kernel_that_faults_takes_the_model_out_of_service(
    kernels: Kernels, pack: Pack, image: Tensor, name: str
) -> None:
    driver = driver_of(kernels)
    assert isinstance(driver, FakeDriver)
    with closing(CudaDevice(driver, CpuDevice())) as device:
        plan = make_plan(Program.as_compiled(pack), device.adapt(ARCHITECTURES[name]))
        with engine_of(pack, plan, device) as (engine, _):
            engine.run({"image": image})
            driver.fail[f"run {some_function(driver)}"] = 700
            with pytest.raises(DeviceLostError, match="until a restart"):
                engine.run({"image": image})
            assert "until a restart" in engine.broken
            with pytest.raises(DeviceLostError):
                engine.run({"image": image})


def some_function(driver: FakeDriver) -> str:
    """Return the name of a kernel in the middle of a sweep."""
    names = [operation.name for operation in driver.log if operation.kind == "launch"]
    return names[len(names) // 2]


def failing(reader: MemoryReader) -> None:
    def hook(offset: int, length: int) -> None:
        if offset:
            raise ReadError("Input/output error")

    reader.hook = hook


def mend(reader: MemoryReader) -> None:
    reader.hook = None


@pytest.mark.parametrize("name", ["async", "2s"])
def test_a_read_that_fails_loses_nothing(
    kernels: Kernels, pack: Pack, image: Tensor, preloaded: Tensor, name: str
) -> None:
    with device_on(driver_of(kernels)) as device:
        plan = make_plan(Program.as_compiled(pack), device.adapt(ARCHITECTURES[name]))
        with engine_of(pack, plan, device) as (engine, reader):
            engine.run({"image": image})
            failing(reader)
            with pytest.raises(ReadError):
                engine.run({"image": image})
            mend(reader)
            assert np.array_equal(engine.run({"image": image})[0]["logits"], preloaded)


@pytest.mark.skipif(ON_GPU, reason="the fake driver's memory is counted to the byte")
def test_device_memory_is_what_the_plan_says(kernels: Kernels, pack: Pack, image: Tensor) -> None:
    driver = FakeDriver(known=replace(XAVIER, integrated=False), memory_bytes=64 << 20)
    with device_on(driver, "copied") as device:
        plan = make_plan(Program.as_compiled(pack), ARCHITECTURES["async"])
        with engine_of(pack, plan, device) as (engine, _):
            engine.run({"image": image})
            memory = plan.memory
            own = sum(memory[kind] for kind in ("ring", "resident", "arena", "scratch"))
            assert own <= driver.used_bytes <= own + memory["sessions"]
            assert plan.ring_bytes == plan.largest_chunk_bytes  # Eq. 8: half of it in each memory


@pytest.mark.skipif(ON_GPU, reason="the fake driver's memory is limited")
def test_too_little_memory_is_refused_before_any_is_taken(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    driver = FakeDriver(memory_bytes=64 << 10)
    with device_on(driver) as device:
        plan = make_plan(program, ARCHITECTURES["pre"])
        pool = ReadPool()
        with pytest.raises(CudaMemoryError, match=r"needs .* of 65536 bytes are free"):
            Engine(program, plan, device, pool, MemoryReader(b""))
        pool.close()
