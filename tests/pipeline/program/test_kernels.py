"""What runs a piece is one value, chosen once: drawn networks, and each member of the union."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from models.compiler import CompileOptions
from models.packs.records.pieces import Elementwise, JoinedPieces, Piece
from pipeline.devices.base import Block
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.pack_kernels import KernelCall, PackKernels
from pipeline.execution.opened import opened
from pipeline.planning.joined_launches import joined
from pipeline.planning.make import make_plan
from pipeline.program.kernels import (
    Chain,
    CopyKernel,
    FillKernel,
    IntegerTask,
    Kernel,
    OrtGraph,
    TableLookup,
)
from pipeline.program.prepare import prepare
from pipeline.program.sessions import LOOKUP_BYTES, Opened
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import examples
from tests.models.nets import CHUNK_BYTES, answers, inputs_for, parsed, written
from tests.models.streamed import compiled
from tests.pipeline.synthetic import program as synthetic

#: Nodes that make {y} of {x} and of what came two before it, {z}; all have one shape.
_STEPS = (
    "{y} = Conv<pads=[1,1,1,1]>({x}, w)",
    "{y} = Relu({x})",
    "{y}s = Sigmoid({x}) {y} = Mul({x}, {y}s)",
    "{y}p = Softplus({x}) {y}t = Tanh({y}p) {y} = Mul({x}, {y}t)",
    "{y} = Add({x}, {z})",
    "{y} = Max({x}, {z})",
    "{y} = Ceil({x})",
)
_SHAPE = (1, 16, 17, 15)


def network(steps: list[int]) -> str:
    names = ["x", "x", *(f"v{index}" for index in range(len(steps)))]
    nodes = [
        _STEPS[step].format(x=names[index + 1], y=names[index + 2], z=names[index])
        for index, step in enumerate(steps)
    ]
    return " ".join([*nodes, f"y = Conv<pads=[1,1,1,1]>({names[-1]}, w)"])


@examples(3, many=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.integers(0, len(_STEPS) - 1), min_size=2, max_size=8),
    threads=st.integers(1, 2),
    native=st.booleans(),
)
def test_each_piece_has_one_kernel_and_that_is_bound(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], threads: int, native: bool
) -> None:
    dims = ",".join(map(str, _SHAPE))
    text = f"m (float[{dims}] x) => (float[{dims}] y) {{ {network(steps)} }}"
    folder = Path(tmp_path_factory.mktemp("kernels"))
    source = written(parsed(text, {"w": (16, 16, 3, 3)}), folder / "m.onnx")
    pack = compiled(source, folder, CompileOptions(chunk_bytes=CHUNK_BYTES))
    with closing(CpuDevice(threads, native=native)) as device:
        program = prepare(pack, device)
        for piece, of_file in zip(program.pieces, pack.manifest.pieces, strict=True):
            check_choice(piece.kernel, of_file, device)
        for item, of_pack in zip(program.alternatives, pack.manifest.alternatives, strict=True):
            for join, of_join in zip(item.joined, of_pack.joined, strict=True):
                check_choice(join.kernel, of_join, device)
        assert len(program.row_kernels) == len(program.row_operators)
        plan = joined(program, make_plan(program, ARCHITECTURES["pre"]))
        inputs = inputs_for({"x": _SHAPE})
        with opened(program, plan, device) as engine:
            found = engine.run(inputs)[0]["y"].copy()
    expected = answers(source, inputs)["y"]
    assert np.abs(found - expected).max() <= 1e-4 * max(np.abs(expected).max(), 1)


def check_choice(kernel: Kernel, of_file: Piece | JoinedPieces, device: CpuDevice) -> None:
    """Check that ``kernel`` computes what the file says, where the device has what that takes."""
    assert type(kernel) in get_args(Kernel)
    match kernel:
        case OrtGraph(graph, resident):
            assert graph == of_file.graph
            assert resident == (isinstance(of_file, Piece) and of_file.resident is not None)
        case Chain():
            assert device.one_pass is not None
            assert kernel.elementwise == of_file.elementwise
        case CopyKernel():
            assert device.one_pass is not None
            assert of_file.elementwise is not None
        case IntegerTask() | TableLookup() | FillKernel():
            raise AssertionError("of no integers, no table, and no region")


def bind(kernel: Kernel, *ports: list[Any]) -> Callable[[], None]:
    with closing(CpuDevice(1)) as device:
        return PackKernels(synthetic([], [False]), device).bind(KernelCall(kernel, *ports))


@pytest.mark.parametrize("in_blocks", [False, True])
def test_a_copy_moves_each_of_its_pairs(in_blocks: bool) -> None:
    one, two, *outputs = (np.full((2, 3), value, np.float32) for value in range(4))
    ports: list[list[Any]] = [[one, two], outputs]
    if in_blocks:
        ports = [list(map(Block.of, arrays)) for arrays in ports]
    bind(CopyKernel(((0, 1), (1, 0))), *ports)()
    assert np.array_equal(outputs[1], one)
    assert np.array_equal(outputs[0], two)
    bind(CopyKernel(()), *ports)()
    assert np.array_equal(outputs[0], two)


def test_rows_of_a_request_are_put_where_a_copy_writes() -> None:
    target = np.zeros((2, 4, 3), np.float32)
    rows = Block(target, range(1, 2), range(2, 4), range(3))
    bind(CopyKernel(((0, 0),)), [lambda rows: rows.fill(5)], [rows])()
    assert (target[1, 2:] == 5).all()
    assert target.sum() == 5 * 6


def test_a_fill_writes_its_number() -> None:
    target = np.zeros((2, 3), np.float32)
    bind(FillKernel(7.0), [], [Block.of(target)])()
    assert (target == 7).all()


ELEMENTWISE = Elementwise(program=0, reads=(0,), makes=(0,))
SAMPLES: dict[type, tuple[Kernel, int]] = {
    OrtGraph: (OrtGraph(0, resident=False), 1),
    Chain: (
        Chain(
            elementwise=ELEMENTWISE,
            bound_bytes=3,
            shared_elements=8,
            together_bytes=70,
            node_bytes=None,
        ),
        3,
    ),
    IntegerTask: (
        IntegerTask(task=0, graph=0, workspace_bytes=9, bound_bytes=5, together_bytes=70),
        5,
    ),
    TableLookup: (
        TableLookup(span=0, rows=9, row_bytes=4, buffer_bytes=4096, graph=0, graph_inputs=()),
        LOOKUP_BYTES,
    ),
    CopyKernel: (CopyKernel(((0, 0),)), 512),
    FillKernel: (FillKernel(0.0), 512),
}


def test_every_kernel_is_counted_and_released() -> None:
    assert SAMPLES.keys() == set(get_args(Kernel))
    for kernel, n_bytes in SAMPLES.values():
        counted = Opened(synthetic([], [False]))
        counted.bind(kernel, [(4, 4)])
        assert counted.other_bytes == n_bytes * (not isinstance(kernel, OrtGraph))
        assert sum(counted.sessions.values()) == isinstance(kernel, OrtGraph)
        assert counted.together_bytes == 70 * isinstance(kernel, Chain | IntegerTask)
        counted.bind(kernel, [(4, 4)], -1)
        assert (counted.n_bytes(), counted.together_bytes) == (0, 0)


def test_small_chains_share_no_threads() -> None:
    chain, _ = SAMPLES[Chain]
    counted = Opened(synthetic([], [False]))
    counted.bind(chain, [(7,)])
    assert counted.together_bytes == 0
