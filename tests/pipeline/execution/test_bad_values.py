"""Whole numbers that a kernel refuses are a mistake of the request, and the message names the input."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import open_pack
from pipeline.devices.base import KernelError, KernelValueError
from pipeline.devices.cpu import CpuDevice, _failure
from pipeline.execution.errors import InputError
from pipeline.execution.lane import Lane
from pipeline.execution.opened import opened
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import over
from tests.models.nets import parsed

#: Each refuses 99 of the inputs that the message names, and takes 1.
OPERATORS = {
    "Gather": ("x = Gather(table, i)", "input 'i'"),
    "GatherElements": ("x = GatherElements(table, square)", "input 'square'"),
    "GatherND": ("x = GatherND(table, one_each)", "input 'one_each'"),
    "ScatterND": ("x = ScatterND(table, one_each, table)", "input 'one_each'"),
    "computed": ("j = Neg(i) x = Gather(table, j)", "input 'i'"),
    "several": ("j = Add(i, k) x = Gather(table, j)", "inputs 'i', 'k'"),
}


@pytest.fixture(scope="module")
def device() -> Iterator[CpuDevice]:
    device = CpuDevice(1)
    yield device
    device.close()


@over("operator", list(OPERATORS))
def test_values_out_of_range_name_the_input(
    operator: str, device: CpuDevice, tmp_path: Path
) -> None:
    """Also in one lane of two: the other one is answered."""
    text, named = OPERATORS[operator]
    ports = {"i": (4,), "k": (4,), "one_each": (4, 1), "square": (4, 4)}
    read = {name: shape for name, shape in ports.items() if name in text.replace("table", "")}
    listed = ", ".join(f"int64[{','.join(map(str, shape))}] {name}" for name, shape in read.items())
    source = parsed(
        f"bad ({listed}) => (float[4,4] y) {{ {text} y = MatMul(x, w) }}",
        {"table": (4, 4), "w": (4, 4)},
    )
    path = tmp_path / f"{operator}.onnx"
    onnx.save(source, path)
    program = prepare(open_pack(compile_onnx(path, tmp_path / operator, CompileOptions())), device)
    good = {name: np.ones(shape, np.int64) for name, shape in read.items()}
    bad = {name: np.full(shape, 99, np.int64) for name, shape in read.items()}
    with opened(program, make_plan(program, ARCHITECTURES["2s"]), device) as engine:
        expected = engine.run(good)[0]
        with pytest.raises(InputError, match=rf"^{named}: layer .*\): .*Non-zero .*(99|198|range)"):
            engine.run(bad)
        np.testing.assert_array_equal(engine.run(good)[0]["y"], expected["y"])
    two = make_plan(program, ARCHITECTURES["2s"], choice=Choice(lanes=2))
    with opened(program, two, device) as engine:
        wrong, right = engine.run_lanes([Lane(bad), Lane(good)])
        assert isinstance(wrong, InputError)
        assert not isinstance(right, Exception)


@over("text", ["Status Message: std::bad_alloc", "Failed to allocate memory for requested buffer"])
def test_a_lack_of_memory_is_no_mistake_of_a_request(text: str) -> None:
    failed = "Non-zero status code returned while running Gather node. "
    assert _failure(RuntimeError(failed + "Status Message: idx=99")) is KernelValueError
    assert _failure(RuntimeError(failed + text)) is KernelError
    assert _failure(RuntimeError(text)) is KernelError
