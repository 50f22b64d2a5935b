"""Pieces of several nodes: where values lie, what is a copy, what is refused."""

import re

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pipeline.devices.cuda.call import DevicePointer
from pipeline.devices.cuda.lowering import NotCoveredError, describe, lower
from pipeline.devices.cuda.scope import ConvolutionSettings
from pipeline.program.lives import ALIGNMENT
from tests.examples import over
from tests.pipeline.devices.cuda.lowering.graphs import graph, node
from tests.pipeline.devices.cuda.lowering.lowered import same
from tests.pipeline.devices.nodes import MICROSOFT, ints, numbers

pytestmark = pytest.mark.usefixtures("kernels")

X = numbers(1, 4, 6, 5)


def test_values_inside_share_memory() -> None:
    names = ["x0", *(f"t{i}" for i in range(8)), "y0"]
    steps = ["Abs", "Neg", "Transpose"] * 3
    nodes = [node(steps[i], names[i], names[i + 1]) for i in range(9)]
    program = same(graph(nodes, [X]), [X])
    size = -(-X.nbytes // ALIGNMENT) * ALIGNMENT
    assert program.inner_bytes == 2 * size
    offsets = {
        argument.offset
        for call in program.calls
        for argument in call.arguments
        if isinstance(argument, DevicePointer) and argument.space == "inner"
    }
    assert offsets == {0, size}


def test_a_value_that_is_read_late_keeps_its_memory() -> None:
    nodes = [
        node("Abs", "x0", "t0"),
        *(node("Neg", f"t{i}", f"t{i + 1}") for i in range(4)),
        node("Sub", "t0 t4", "y0"),
    ]
    same(graph(nodes, [X]), [X])


def test_other_names_cost_nothing_inside() -> None:
    nodes = [
        node("Reshape", "x0 shape", "t0"),
        node("Abs", "t0", "t1"),
        node("Unsqueeze", "t1 axes", "t2"),
        node("Identity", "t2", "t3"),
        node("Neg", "t3", "t4"),
        node("Flatten", "t4", "y0", axis=2),
    ]
    constants = {"shape": ints(4, -1), "axes": ints(0)}
    program = same(graph(nodes, [X], constants), [X])
    assert [call.function for call in program.calls] == ["activate_elements", "activate_elements"]


def test_several_names_of_one_result() -> None:
    nodes = [
        node("Abs", "x0", "t0"),
        node("Flatten", "t0", "y0"),
        node("Identity", "t0", "y1"),
        node("Neg", "t0", "y2"),
    ]
    program = same(graph(nodes, [X], outputs=3), [X])
    assert [call.function for call in program.calls] == [
        "activate_elements",
        "copy_bytes",
        "activate_elements",
    ]


def test_a_result_that_is_also_read() -> None:
    nodes = [node("Abs", "x0", "y0"), node("Neg", "y0", "y1")]
    program = same(graph(nodes, [X], outputs=2), [X])
    assert program.inner_bytes == 0


def test_names_of_an_input() -> None:
    nodes = [node("Flatten", "x0", "t0"), node("Identity", "t0", "y0"), node("Abs", "t0", "y1")]
    program = same(graph(nodes, [X], outputs=2), [X])
    assert [call.function for call in program.calls] == ["copy_bytes", "activate_elements"]


def test_constants() -> None:
    held = numbers(4, 1, 1)
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(held)),
        helper.make_node("Constant", [], ["two"], value_float=2.0),
        node("Add", "x0 c", "t0"),
        node("Mul", "t0 two", "t1"),
        node("Sub", "t1 c", "y0"),
    ]
    program = same(graph(nodes, [X]), [X])
    assert len(program.constants) == 2


def test_outputs_that_no_node_makes_are_refused() -> None:
    constant = helper.make_node("Constant", [], ["y0"], value=numpy_helper.from_array(X))
    with pytest.raises(NotCoveredError, match="y0: no node makes this output"):
        lower(graph([constant], [X]), ConvolutionSettings())


def test_a_result_that_is_not_what_its_port_says_is_refused() -> None:
    model = onnx.load_model_from_string(graph([node("Transpose", "x0", "y0")], [X]))
    port = helper.make_tensor_value_info("y0", onnx.TensorProto.FLOAT, X.shape)
    model.graph.output[0].CopyFrom(port)
    reason = re.escape("y0: float32 [5, 6, 4, 1] is made, not float32 [1, 4, 6, 5]")
    with pytest.raises(NotCoveredError, match=f"^{reason}$"):
        lower(model.SerializeToString(), ConvolutionSettings())


def test_what_reads_a_result_that_is_not_known_is_not_named() -> None:
    nodes = [node("Reshape", "x0 x1", "t0"), node("Abs", "t0", "t1"), node("Neg", "t1", "y0")]
    with pytest.raises(NotCoveredError) as caught:
        lower(graph(nodes, [X, ints(4, 30)]), ConvolutionSettings())
    assert caught.value.operators == ("Reshape: input 1, 'x1', is not constant",)


def test_what_is_fused_with_a_node_that_is_not_covered_is_not_lost() -> None:
    nodes = [
        node("Add", "x0 half", "t0", broadcast=1),
        node("Relu", "t0", "t1"),
        node("Neg", "t1", "y0"),
    ]
    with pytest.raises(NotCoveredError) as caught:
        lower(
            graph(nodes, [X], {"half": np.array(0.5, np.float32)}, opset=6), ConvolutionSettings()
        )
    assert caught.value.operators == ("Add: what it means in opset 6 is not known",)


def test_a_transposed_convolution_has_no_kernel() -> None:
    inputs = [X, numbers(4, 3, 2, 2)]
    with pytest.raises(NotCoveredError, match=r"^ConvTranspose: no kernel$"):
        lower(graph([node("ConvTranspose", "x0 x1", "y0")], inputs), ConvolutionSettings())


def test_fusions_of_operators_on_elements() -> None:
    vectors = [numbers(4, seed=i) ** 2 for i in range(4)]
    nodes = [
        node("BatchNormalization", "x0 x1 x2 x3 x4", "t0"),
        node("Relu", "t0", "t1"),
        node("Add", "t1 x0", "t2"),
        node("Softplus", "t2", "t3"),
        node("Tanh", "t3", "t4"),
        node("Mul", "t4 t2", "t5"),
        node("Sigmoid", "t5", "t6"),
        node("Mul", "t5 t6", "y0"),
    ]
    program = same(graph(nodes, [X, *vectors]), [X, *vectors])
    functions = [call.function for call in program.calls]
    assert functions == ["batch_normalise", "binary", "activate_elements"]


def test_every_node_that_is_not_covered_is_named() -> None:
    nodes = [
        node("Abs", "x0", "t0"),
        node("Cast", "t0", "t1", to=7),
        node("NonZero", "t1", "y0"),
    ]
    with pytest.raises(NotCoveredError) as caught:
        describe(graph(nodes, [X]))
    assert caught.value.operators == ("Cast: no kernel", "NonZero: no kernel")
    nodes = [node("Neg", "x0", "t0"), node("Transpose", "t0", "t1"), node("Clip", "x1 x2", "y0")]
    whole = np.ones((2, 2), np.int64)
    scalar = np.array(1.0, np.float32)
    with pytest.raises(NotCoveredError) as caught:
        describe(graph(nodes, [whole, X, scalar]))
    assert caught.value.operators == (
        "Neg: input 0 is int64, not float32",
        "Clip: parameters that are not known",
    )


def test_what_runs_only_at_run_time_is_refused() -> None:
    nodes = [node("Reshape", "x0 x1", "t0"), node("Abs", "t0", "y0")]
    with pytest.raises(NotCoveredError, match=r"^Reshape: input 1, 'x1', is not constant$"):
        lower(graph(nodes, [X, ints(4, 30)]), ConvolutionSettings())
    nodes = [node("Slice", "x0 x1 x1", "y0")]
    with pytest.raises(NotCoveredError, match="Slice: "):
        lower(graph(nodes, [X, ints(1)]), ConvolutionSettings())
    nodes = [node("Relu", "x0", "y0", domain="com.microsoft.nchwc")]
    with pytest.raises(NotCoveredError, match=r"com\.microsoft\.nchwc\.Relu: no kernel"):
        lower(graph(nodes, [X]), ConvolutionSettings())


@over("operator", ["Abs", "Softmax", "Transpose", "Flatten", "ReduceMean"])
def test_sizes_that_kernels_cannot_count(operator: str) -> None:
    huge = np.broadcast_to(np.float32(0), (1, 1 << 31))
    with pytest.raises(NotCoveredError, match=rf"{operator}: .*\d+ (elements|bytes|groups)"):
        describe(graph([node(operator, "x0", "y0")], [huge]))
    with pytest.raises(NotCoveredError, match=f"{operator}: a tensor is empty"):
        describe(graph([node(operator, "x0", "y0")], [numbers(1, 0)]))


def test_a_dropout_that_may_drop_is_refused() -> None:
    flags = {"ratio": np.array(0.5, np.float32), "training": np.array(True)}
    same(graph([node("Dropout", "x0 ratio", "y0")], [X], flags), [X])
    with pytest.raises(NotCoveredError, match="Dropout: training_mode"):
        lower(
            graph([node("Dropout", "x0 ratio training", "y0")], [X], flags), ConvolutionSettings()
        )


def test_descriptions_are_names_of_kernels() -> None:
    nodes = [
        node("Sigmoid", "x0", "t0"),
        node("Mul", "x0 t0", "t1"),
        node("QuickGelu", "t1", "y0", domain=MICROSOFT),
    ]
    assert describe(graph(nodes, [X])) == ["activate_elements", "activate_elements"]
