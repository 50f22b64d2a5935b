"""Small graphs of several nodes, as the compiler cuts pieces."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from models.graphs.tidy import lift_constants
from models.zoo.builder import IR_VERSION
from tests.pipeline.devices.nodes import MICROSOFT

Array = NDArray[Any]


def node(operator: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    """Return a node; names are separated by spaces."""
    domain = attributes.pop("domain", "")
    return helper.make_node(operator, inputs.split(), output.split(), domain=domain, **attributes)


def graph(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Array],
    constants: Mapping[str, Array] | None = None,
    outputs: int = 1,
    opset: int = 18,
) -> bytes:
    """Return a piece with inputs x0 ... of the shapes of ``inputs`` and outputs y0 ..."""
    ports = [
        helper.make_tensor_value_info(
            f"x{i}", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
        )
        for i, array in enumerate(inputs)
    ]
    results = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)]
    held = [
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in (constants or {}).items()
    ]
    made = helper.make_graph(list(nodes), "", ports, results, held)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=IR_VERSION)
    lift_constants(model)  # as files are read
    return bytes(model.SerializeToString())
