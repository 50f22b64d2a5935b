"""ONNX Runtime's table is what ONNX Runtime says of itself, and does."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper

from models.network.activations import Activation, Arithmetic
from models.network.catalogue import OPERATORS
from models.network.names import Op, named, op_of
from models.runtime.joined_graphs import JOINED_TYPES, can_join, join_graphs
from models.runtime.kernels import KERNELS, WITHOUT_KERNEL
from models.runtime.sessions import SessionError, open_joined, open_session, session_options
from tests.models.compiler.cutting.scratch_cases import FORMULA_CASES, MEASURED_CASES, Case
from tests.models.nets import parsed
from tests.models.runtime.kernel_nodes import (
    PROVIDER,
    KernelNode,
    nodes_on_elements,
    types_registered,
)
from tests.oracle.functions import activate

_ENDLESS = (1 << 31) - 1
#: Operators without a kernel that ONNX defines by others, of which one has none.
DEFINED = (Op.Bernoulli, Op.Swish)
_LAUNCH_TYPES = {helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in JOINED_TYPES}


def test_there_is_a_row_for_each_kernel_that_onnxruntime_has_registered_and_for_no_other() -> None:
    assert KERNELS.keys() == types_registered().keys()


def has_kernel(operator: str, version: int) -> bool:
    """Return whether ONNX Runtime runs ``version``: a kernel without an end is of its first one alone."""
    ranges = (
        kernel.version_range
        for kernel in onnxruntime.get_all_opkernel_def()
        if (kernel.provider, named(kernel.domain, kernel.op_name)) == (PROVIDER, operator)
    )
    return any(version == first or first < version <= last < _ENDLESS for first, last in ranges)


def test_versions_without_a_kernel_are_listed() -> None:
    without = {}
    schemas: Any = onnx.defs.get_all_schemas_with_history()
    for schema in schemas:
        record = OPERATORS.get(named(schema.domain, schema.name))
        if record is None or not record.describes(schema.since_version):
            continue
        is_defined = schema.has_function or schema.has_context_dependent_function
        if not (is_defined or schema.deprecated) and not has_kernel(
            record.name, schema.since_version
        ):
            without[record.name] = schema.since_version
    del without[Op.Constant]  # those are no nodes when they run
    assert without == {name: WITHOUT_KERNEL[name] for name in WITHOUT_KERNEL if name not in DEFINED}


@pytest.mark.parametrize("operator", DEFINED)
def test_what_defines_an_operator_may_be_without_a_kernel(operator: Op) -> None:
    model = parsed(f"one (float[4] x) => (float y) {{ y = {operator}(x) }}")
    model.opset_import[0].version = WITHOUT_KERNEL[operator] - 1
    open_session(model.SerializeToString(), session_options(optimise=False))
    model.opset_import[0].version = WITHOUT_KERNEL[operator]
    with pytest.raises(SessionError, match="NOT_IMPLEMENTED"):
        open_session(model.SerializeToString(), session_options(optimise=False))


def test_rows_are_in_order_and_their_operands_exist() -> None:
    assert [*KERNELS] == sorted(KERNELS, key=lambda name: (name.count("."), name))
    for name, kernel in KERNELS.items():
        assert kernel.operator is Op(name)
        assert all(OPERATORS[name].operand(position) for position in kernel.writes_over)


# Kernels that write over what they read.


def computed(node: KernelNode, over: str, threads: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what ``node`` makes beside its inputs, and over one of them if that is as large."""
    session = open_session(node.model(), session_options(optimise=False, threads=threads))
    inputs = {name: array.copy() for name, array in node.inputs.items()}
    expected = session.run(None, inputs)[0]
    target = inputs[over]
    if target.nbytes != expected.nbytes:
        return expected, expected
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    binding.bind_output("y", "cpu", 0, expected.dtype, expected.shape, target.ctypes.data)
    session.run_with_iobinding(binding)
    return expected, target


def have_their_bits_over_operands(count: int, threads: int) -> None:
    for node in nodes_on_elements(count):
        names = [*node.inputs]
        for position in node.kernel.writes_over:
            expected, actual = computed(node, names[position], threads)
            assert actual.tobytes() == expected.tobytes(), (node.kernel.operator, position)


def test_kernels_have_their_bits_over_operands() -> None:
    have_their_bits_over_operands(4099, threads=1)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_kernels_have_their_bits_over_large_operands(threads: int) -> None:
    have_their_bits_over_operands((1 << 18) + 5, threads)


def test_a_kernel_that_reads_again_what_it_has_written_over_is_no_such() -> None:
    different = set()
    for node in nodes_on_elements(4099):
        if node.kernel.operator in (Op.Gelu, Op.MicrosoftGelu, Op.QuickGelu):
            assert not node.kernel.writes_over
            expected, actual = computed(node, "x0", threads=1)
            if actual.tobytes() != expected.tobytes():
                different.add(node.kernel.operator)
    assert (
        different
    )  # which ones depends on the processor: ONNX Runtime has several kernels of them


# Kernels that run in the order of their graph.


def test_kernels_on_elements_that_share_a_launch_run_in_order() -> None:
    for node in nodes_on_elements(8):
        if {array.dtype.name for array in node.inputs.values()} <= JOINED_TYPES:
            graph = node.model()
            assert can_join(graph) == (node.kernel.launch == "joins")
            if can_join(graph):
                open_joined(join_graphs([graph, graph]), 1)


def run_in_order(cases: Iterable[Case]) -> None:
    for case in cases:
        model = case.model()
        kernels = [KERNELS.get(op_of(node)) for node in model.graph.node]
        ports = (*model.graph.input, *model.graph.output)
        types = {port.type.tensor_type.elem_type for port in ports}
        if types <= _LAUNCH_TYPES and all(
            kernel and kernel.launch == "joins" for kernel in kernels
        ):
            graph = model.SerializeToString()
            open_joined(join_graphs([graph, graph]), 1)


def test_others_that_share_a_launch_run_in_order() -> None:
    run_in_order(FORMULA_CASES[::12])


@pytest.mark.slow
def test_all_others_that_share_a_launch_run_in_order() -> None:
    run_in_order((*FORMULA_CASES, *MEASURED_CASES))


# Kernels whose bits do not depend on how many elements there are.


def test_even_kernels_have_the_same_bits_on_some_of_the_elements() -> None:
    count, first, end = 4099, 64, 1013
    for node in nodes_on_elements(count):
        is_function = OPERATORS[node.kernel.operator].function is not None
        is_double = node.inputs["x0"].dtype == np.float64
        if is_double or not is_function or not node.kernel.is_even:
            continue
        session = open_session(node.model(), session_options(optimise=False, threads=1))
        shorter = {
            name: array[first:end] if array.size == count else array
            for name, array in node.inputs.items()
        }
        some = KernelNode(node.kernel, shorter)
        other = open_session(some.model(), session_options(optimise=False, threads=1))
        expected = session.run(None, dict(node.inputs))[0][first:end]
        actual = other.run(None, shorter)[0]
        assert actual.tobytes() == expected.tobytes(), node.kernel.operator


# What they compute is what the catalogue says.

#: Functions of two numbers.
_OF_TWO: Mapping[Arithmetic, Callable[..., NDArray[Any]]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "modulo": np.fmod,
    "power": np.power,
    "larger": np.maximum,
    "smaller": np.minimum,
    "scale_negative": lambda x, slope: np.where(x < 0, x * slope, x),
}


def meant(node: KernelNode) -> NDArray[Any]:
    """Return what the function of the operator of ``node`` makes of its inputs, as 64-bit floats."""
    record = OPERATORS[node.kernel.operator]
    first, *others = (array.astype(np.float64) for array in node.inputs.values())
    function: Any = record.function
    if function in _OF_TWO:
        return functools.reduce(_OF_TWO[function], others, first)
    parameters = map(float, others or record.attributes.values())
    return activate(first, Activation(function, *parameters))


def test_kernels_compute_what_functions_mean() -> None:
    for node in nodes_on_elements(64):
        record = OPERATORS[node.kernel.operator]
        is_float = node.inputs["x0"].dtype == np.float32
        with_bias = record.name == Op.FastGelu
        if record.function is None or not is_float or with_bias or record.name == Op.Gelu:
            continue
        session = open_session(node.model(), session_options(optimise=False, threads=1))
        actual = session.run(None, dict(node.inputs))[0]
        with np.errstate(invalid="ignore"):
            expected = meant(node)
        np.testing.assert_allclose(actual, expected, 3e-6, 3e-6, err_msg=record.name)
