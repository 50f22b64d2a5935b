"""Pieces of one node, to compare the reference device with ONNX Runtime on the same bytes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from models.packs.target import host_target
from models.runtime.sessions import open_piece
from models.zoo.builder import IR_VERSION
from tests.examples import examples
from tests.oracle.device import ReferenceDevice

Array = NDArray[Any]

BLOCK = host_target().block
NCHWC = "com.microsoft.nchwc"
MICROSOFT = "com.microsoft"
needs_blocks = pytest.mark.skipif(BLOCK == 1, reason="no blocked layout on this machine")
drawn = examples(15, many=600, database=None)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def piece(
    operator: str,
    inputs: Sequence[Array | None],
    attributes: Mapping[str, Any],
    *,
    domain: str = "",
    opset: int = 17,
    outputs: int = 1,
    weights: bool = False,
) -> bytes:
    """Return a graph of one node. Inputs after the first are initializers, or with ``weights`` inputs.

    Whole numbers are always initializers, as shapes and axes are in a pack.
    """
    names = ["" if array is None else f"x{i}" for i, array in enumerate(inputs)]
    ports, constants = [], []
    for position, (name, array) in enumerate(zip(names, inputs, strict=True)):
        if array is None:
            continue
        if position and (not weights or array.dtype == np.int64):
            constants.append(numpy_helper.from_array(array, name))
        else:
            dtype = helper.np_dtype_to_tensor_dtype(array.dtype)
            ports.append(helper.make_tensor_value_info(name, dtype, array.shape))
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(operator, names, results, domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "",
        ports,
        [helper.make_empty_tensor_value_info(name) for name in results],
        constants,
    )
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    return bytes(model.SerializeToString())


def launch(graph: bytes, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
    ReferenceDevice().load(graph).bind(inputs, outputs)()


def agree(operator: str, inputs: Sequence[Array | None], **options: Any) -> None:
    """Assert that the reference device and ONNX Runtime give the same; options as of ``piece``."""
    attributes = options.pop("attributes", {})
    graph = piece(operator, inputs, attributes, **options)
    session = open_piece(graph)
    fed = {port.name: inputs[int(port.name[1:])] for port in session.get_inputs()}
    expected = session.run(None, fed)
    results = [np.full_like(array, 77) for array in expected]
    launch(graph, [array for array in fed.values() if array is not None], results)
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-5)


@st.composite
def windows(draw: st.DrawFn) -> tuple[tuple[int, int], dict[str, Any]]:
    """Draw the size of an input and the attributes of windows that fit it."""
    pair = st.tuples
    kernel = draw(pair(st.integers(1, 3), st.integers(1, 4)))
    auto_pad = draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]))
    # With SAME_* ONNX Runtime refuses dilation, or in pools overlooks it, and strides that need
    # no padding but a shorter input.
    same = auto_pad.startswith("SAME")
    steps = st.integers(1, 1 if same else 2)
    dilations = draw(pair(steps, steps))
    extents = [(n - 1) * step + 1 for n, step in zip(kernel, dilations, strict=True)]
    size = tuple(extent + draw(st.integers(0, 6)) for extent in extents)
    attributes: dict[str, Any] = {
        "kernel_shape": kernel,
        "strides": tuple(draw(st.integers(1, min(n, 3) if same else 3)) for n in kernel),
        "dilations": dilations,
    }
    if auto_pad == "NOTSET":
        # ONNX Runtime refuses pools whose padding is as long as the kernel.
        attributes["pads"] = [draw(st.integers(0, n - 1)) for n in (*kernel, *kernel)]
    else:
        attributes["auto_pad"] = auto_pad
    return (size[0], size[1]), attributes


#: Attributes of fused activations, with parameters where they have some.
ACTIVATIONS: list[dict[str, Any]] = [
    {},
    {"activation": "Relu"},
    {"activation": "LeakyRelu", "activation_params": [0.3]},
    {"activation": "Clip", "activation_params": [-0.5, 1.5]},
    {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    {"activation": "HardSwish"},
    {"activation": "Sigmoid"},
    {"activation": "Tanh"},
]
