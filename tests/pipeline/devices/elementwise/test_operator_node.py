"""Chains as an operator of ONNX Runtime: the bits of the library alone; what is no program is refused."""

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from models.packs.records.pieces import ElementStep
from models.runtime.joined_graphs import can_join
from models.runtime.sessions import SessionError, open_piece
from pipeline.devices.base import DeviceError, KernelError
from pipeline.devices.cpu import CpuDevice, _CpuKernel
from pipeline.devices.elementwise.operator_node import (
    chain_model,
    chain_node,
    holds_chain,
    model,
    node,
    why_not_shared,
)
from pipeline.devices.elementwise.programs import NativeProgram
from pipeline.devices.interface.native import (
    CHAIN,
    DOMAIN,
    MAX_AXES,
    MAX_BLOCKS,
    MAX_TENSORS,
    OPERATORS,
    WORTH_SHARING,
)
from tests.examples import over
from tests.pipeline.devices.elementwise.chains import (
    Floats,
    bound,
    computed,
    library,
    native,
    needs_library,
    only,
)

pytestmark = needs_library
_MISH = only("mish", p=1.0)


def run(program: NativeProgram, threads: int, *arrays: Floats) -> None:
    graph = chain_model(program, [array.shape for array in arrays])
    assert graph is not None
    assert holds_chain(graph)
    inputs, outputs = arrays[: program.n_inputs], arrays[program.n_inputs :]
    _CpuKernel(open_piece(graph, threads, library().path)).bind(inputs, outputs)()


@over("threads", [1, 2, 3])
@over("size", [0, 1, 1027, WORTH_SHARING, 5 * WORTH_SHARING + 13])
def test_the_bits_of_the_library_alone(size: int, threads: int) -> None:
    x = np.random.default_rng(8).normal(0, 9, (1, size)).astype(np.float32)
    expected = computed("mish", x, p=1.0)
    separate, shared_memory = np.empty_like(x), x.copy()
    run(_MISH, threads, x, separate)
    run(_MISH, threads, shared_memory, shared_memory)
    for result in (separate, shared_memory):
        np.testing.assert_array_equal(result.view(np.uint32), expected.view(np.uint32))


def test_memory_without_alignment() -> None:
    memory = np.zeros(4 * WORTH_SHARING + 16, np.uint8)
    unaligned = memory[3 : 3 + 4 * WORTH_SHARING].view(np.float32)
    unaligned[:] = np.linspace(-5, 5, WORTH_SHARING)
    expected = computed("mish", unaligned.copy(), p=1.0)
    run(_MISH, 2, unaligned, unaligned)
    np.testing.assert_array_equal(unaligned, expected)
    assert not memory[:3].any()
    assert not memory[3 + 4 * WORTH_SHARING :].any()


def test_a_factor_for_each_channel_and_two_results() -> None:
    program = native(
        ElementStep(kind="multiply", reads=(0, 1)),
        ElementStep(kind="clip", reads=(2,), numbers=(0.0, 6.0)),
        n_inputs=2,
        results=(2, 3),
    )
    rng = np.random.default_rng(9)
    x = rng.standard_normal((1, 6, 99, 65), np.float32)
    f = rng.standard_normal((1, 6, 1, 1), np.float32) * 4
    scaled, y = np.empty_like(x), np.empty_like(x)
    run(program, 2, x, f, scaled, y)
    np.testing.assert_array_equal(scaled, x * f)
    np.testing.assert_array_equal(y, np.clip(x * f, 0, 6))


@over("steps", [1, 63, 64, 65, 66, 80, 300, 2000])
def test_chains_of_any_length(steps: int) -> None:
    todo = [
        ElementStep(kind=("tanh", "negative")[index % 2], reads=(index,)) for index in range(steps)
    ]
    program = native(*todo)
    x = np.random.default_rng(steps).standard_normal(WORTH_SHARING + 5, np.float32)
    single, shared = np.empty_like(x), np.empty_like(x)
    bound(program, [x, single])()
    run(program, 2, x, shared)
    np.testing.assert_array_equal(shared.view(np.uint32), single.view(np.uint32))


@over("n_axes, fits", [(MAX_AXES, True), (MAX_AXES + 1, False)])
def test_as_many_axes_as_the_library_accepts(n_axes: int, fits: bool) -> None:
    shape = (1,) * (n_axes - 1) + (8,)
    assert (chain_model(_MISH, [shape, shape]) is not None) == fits
    ports = [("x", shape)], [("y", shape)]
    program = (1, 1, n_axes, 1, *shape, 0, 0, *_RIGHT[7:])
    graph = model([node(CHAIN, DOMAIN, "x", "y", program=program)], *ports, [(DOMAIN, 1)])
    with nullcontext() if fits else pytest.raises(SessionError):
        open_piece(graph, 1, library().path)


@over("n_inputs, fits", [(MAX_TENSORS - 1, True), (MAX_TENSORS, False)])
def test_as_many_tensors_as_the_library_accepts(n_inputs: int, fits: bool) -> None:
    step = OPERATORS.index("add"), n_inputs, 0, n_inputs - 1, 0, 0
    program = (n_inputs, 1, 1, 1, 8, *(0, 0) * n_inputs, *step)
    names = [f"x{index}" for index in range(n_inputs)]
    ports = [(name, (8,)) for name in names], [("y", (8,))]
    graph = model([node(CHAIN, DOMAIN, names, ["y"], program=program)], *ports, [(DOMAIN, 1)])
    with nullcontext() if fits else pytest.raises(SessionError):
        open_piece(graph, 1, library().path)


@over("block, fits", [(MAX_BLOCKS - 1, True), (MAX_BLOCKS, False)])
def test_as_many_values_in_between_as_the_library_accepts(block: int, fits: bool) -> None:
    tensor, negative = MAX_TENSORS + block, OPERATORS.index("negative")
    steps = (negative, tensor, 0, 0, 0, 0, negative, 1, tensor, tensor, 0, 0)
    program = (1, 1, 1, 2, 8, 0, 0, *steps)
    ports = [("x", (8,))], [("y", (8,))]
    graph = model([node(CHAIN, DOMAIN, "x", "y", program=program)], *ports, [(DOMAIN, 1)])
    with nullcontext() if fits else pytest.raises(SessionError):
        open_piece(graph, 1, library().path)


def test_shapes_that_do_not_go_together_make_no_node() -> None:
    assert chain_node(only("multiply", 2), [(4, 3), (4, 2), (4, 3)], ["x", "f", "y"]) is None
    axes = (1,) * 9
    assert chain_node(_MISH, [axes, axes], ["x", "y"]) is None


# Inputs, outputs, axes, steps; length; plane and width; operator, to, a, b, p, q.
_RIGHT = (1, 1, 1, 1, 8, 0, 0, 8, 1, 0, 0, 0, 0)


@over(
    "numbers",
    [
        (),
        _RIGHT[:-1],
        (*_RIGHT, 0),
        (0, *_RIGHT[1:]),
        (1, 12, *_RIGHT[2:]),
        (1, 1, 9, *_RIGHT[3:]),
        (1, 1, 1, 1, -8, *_RIGHT[5:]),
        (1, 1, 1, 1, 8, 4, 0, *_RIGHT[7:]),
        (*_RIGHT[:7], 99, *_RIGHT[8:]),
        (*_RIGHT[:8], 0, *_RIGHT[9:]),
        (*_RIGHT[:8], 18, *_RIGHT[9:]),
        (*_RIGHT[:9], 2, *_RIGHT[10:]),
        (*_RIGHT[:9], 1, *_RIGHT[10:]),  # reads its output before it is written
        (*_RIGHT[:9], 12, *_RIGHT[10:]),  # and a block
        (*_RIGHT[:8], 12, *_RIGHT[9:]),  # writes no output
        (1, 1, 1, 1, 8, 4, 5, *_RIGHT[7:]),
        (1, 1, 1, 2, *_RIGHT[4:]),  # more steps than there are
        (1, 1, 1, (1 << 31) - 2, *_RIGHT[4:]),
        (1, 1, 1, 1 << 62, *_RIGHT[4:]),
        (1, 1, 3, 1, 1 << 30, 1 << 30, 1 << 30, *_RIGHT[5:]),
    ],
)
def test_what_is_no_program_is_refused(numbers: tuple[int, ...]) -> None:
    def graph(program: tuple[int, ...]) -> bytes:
        ports = [("x", (8,))], [("y", (8,))]
        return model([node(CHAIN, DOMAIN, "x", "y", program=program)], *ports, [(DOMAIN, 1)])

    open_piece(graph(_RIGHT), 1, library().path)
    with pytest.raises(SessionError):
        open_piece(graph(numbers), 1, library().path)


@over("given, plane, width", [(4, 0, 0), (9, 0, 0), (1, 4, 1), (3, 4, 1), (2, 4, 2), (4, 3, 1)])
def test_an_input_of_another_size_than_its_program_says(given: int, plane: int, width: int) -> None:
    """Nothing is read that is not its: a graph may come from anywhere."""
    program = (1, 1, 1, 1, 8, plane, width, *_RIGHT[7:])
    ports = [("x", (given,))], [("y", (8,))]
    graph = model([node(CHAIN, DOMAIN, "x", "y", program=program)], *ports, [(DOMAIN, 1)])
    x, y = np.ones(given, np.float32), np.zeros(8, np.float32)
    launch = _CpuKernel(open_piece(graph, 1, library().path)).bind([x], [y])
    with pytest.raises(KernelError, match="as large as its program says"):
        launch()
    assert not y.any()


def test_a_pack_has_no_chains_of_its_own() -> None:
    """Its graphs come from anywhere: only those that are made here may have operators of ours."""
    graph = chain_model(_MISH, [(8,), (8,)])
    assert graph is not None
    assert not can_join(graph)
    with pytest.raises(DeviceError, match="Chain"):
        CpuDevice().load(graph)


def test_why_threads_are_not_shared_is_one_line() -> None:
    assert why_not_shared(library().path) is None
    reason = why_not_shared(Path("nowhere.so"))
    assert reason is not None
    assert reason.startswith("ONNX Runtime takes no operator of ours: ")
    assert len(reason.splitlines()) == 1
    assert len(reason) < 300
