"""Rows on the CUDA device: the answers of whole tensors, with the kernels of the host build."""

from collections.abc import Sequence
from contextlib import closing
from itertools import cycle
from pathlib import Path
from random import Random

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from loader.readers.fakes import MemoryReader
from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from models.packs.target import cuda_target
from pipeline.devices.base import Block, DeviceError
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.cuda.device import CudaDevice
from pipeline.devices.cuda.memory_kinds import stretches
from pipeline.devices.find import device_measure
from pipeline.devices.names import Kind
from pipeline.execution.opened import opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RowCut
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import examples, thinned
from tests.models.nets import CHUNK_BYTES, inputs_for
from tests.pipeline.devices.cuda.driving import driver_of
from tests.pipeline.devices.cuda.space import Kernels
from tests.pipeline.devices.test_reference_packs import networks
from tests.pipeline.execution.test_rows import CASES, Outputs, close, written
from tests.pipeline.program.regions import largest_regions, random_regions

TARGET = cuda_target(72)


def compiled(name: str, folder: Path) -> Pack:
    options = CompileOptions(chunk_bytes=CHUNK_BYTES, target=TARGET, measure=device_measure(TARGET))
    source = written(CASES[name], folder)
    return open_pack(compile_onnx(source, folder / "rows", options), TARGET)


def answer(
    program: Program, device: CudaDevice, regions: Sequence[Region], architecture: str
) -> list[Outputs]:
    auto = device.adapt(ARCHITECTURES[architecture])
    plan = make_plan(program, auto, choice=Choice(regions=tuple(regions)))
    reader = MemoryReader(program.pack.weights_path.read_bytes())
    inputs = inputs_for(ports_of(program.pack))
    with opened(program, plan, device, reader=reader) as engine:
        return [engine.run(inputs)[0]]


def ports_of(pack: Pack) -> dict[str, tuple[int, ...]]:
    return {port.name: port.shape for port in pack.manifest.inputs}


@pytest.mark.parametrize(
    ("name", "kind", "architecture"),
    thinned(
        (
            (name, kind, architecture)
            for name, kind in zip(sorted(CASES.keys() - {"modulo"}), cycle(["copied", "mapped"]))
            for architecture in ("auto", "pre")
        ),
        14,
    ),
)
def test_rows_give_the_answers_of_whole_tensors(
    name: str, kind: Kind, architecture: str, kernels: Kernels, tmp_path: Path
) -> None:
    pack = compiled(name, tmp_path)
    with closing(CudaDevice(driver_of(kernels, seed=len(name)), CpuDevice(), kind)) as device:
        program = prepare(pack, device)
        network = row_network(program)
        expected = answer(program, device, (), "pre")
        random = Random(name)
        for regions in (
            largest_regions(network, RowCut(random.choice((1, 3)))),
            random_regions(random, network),
        ):
            assert close(answer(program, device, regions, architecture), expected), regions


@examples(
    few=3, many=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(model=networks(), seed=st.integers(0, 999))
def test_random_networks_on_rows_give_what_onnxruntime_does(
    model: onnx.ModelProto, seed: int, kernels: Kernels, tmp_path: Path
) -> None:
    source = tmp_path / "source.onnx"
    onnx.save(model, source)
    options = CompileOptions(
        chunk_bytes=CHUNK_BYTES, target=TARGET, measure=device_measure(TARGET), force=True
    )
    pack = open_pack(compile_onnx(source, tmp_path / "net", options), TARGET)
    (wanted,) = ort.InferenceSession(source).run(None, inputs_for(ports_of(pack)))
    random = Random(seed)
    with closing(CudaDevice(driver_of(kernels, seed), CpuDevice(), "mapped")) as device:
        program = prepare(pack, device)
        network = row_network(program)
        for regions in (largest_regions(network, RowCut(2)), random_regions(random, network)):
            ((result,),) = (found.values() for found in answer(program, device, regions, "auto"))
            np.testing.assert_allclose(result, wanted, atol=1e-4 * np.abs(wanted).max())


def test_what_a_gpu_computes_at_once_is_one_row_operator(tmp_path: Path) -> None:
    pack = compiled("activations", tmp_path)
    operators = pack.manifest.row_operators
    assert len(operators) == len(pack.manifest.layers)
    assert not row_network(Program.as_compiled(pack)).program.programs


def test_rows_of_planes_lie_in_equal_stretches() -> None:
    class Array:
        address, dtype, shape = 4096, "float32", (6, 10, 7)

    block = Block(Array(), range(2, 5), range(3, 7), range(7))
    host = np.arange(6 * 10 * 7, dtype=np.float32).reshape(Array.shape)
    found = stretches(block)
    starts = range(found.address, found.address + found.number * found.pitch, found.pitch)
    bytes_of = host.tobytes()
    parts = b"".join(bytes_of[at - 4096 :][: found.n_bytes] for at in starts)
    assert parts == block._replace(array=host).part.tobytes()
    with pytest.raises(DeviceError, match="tiles run on the CPU"):
        stretches(block._replace(elements=range(3)))
