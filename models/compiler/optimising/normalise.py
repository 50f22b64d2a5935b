"""Small corrections to the optimised model, so that the rest of the compiler meets fewer cases."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from models.compiler.analysis.types import Loose, ValueTypes
from models.errors import CompileError
from models.graphs.file import bring_inside
from models.graphs.nodes import inner_tensors, subgraphs
from models.network.fields import DTYPES


def has_dtype(tensor: TensorProto) -> bool:
    """Return whether NumPy has the element type of ``tensor``, one element after the other."""
    try:
        return np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).name in DTYPES
    except (KeyError, ValueError):
        return False


def take_tensors(model: onnx.ModelProto, folder: Path) -> dict[str, TensorProto]:
    """Return the initializers that have no dtype; bring the data of theirs and of subgraphs inside."""
    found = {tensor.name: tensor for tensor in model.graph.initializer if not has_dtype(tensor)}
    for tensor in (*found.values(), *inner_tensors(model.graph.node)):
        bring_inside(tensor, folder)
    return found


def copy_constant_outputs(model: onnx.ModelProto) -> None:
    """Let a node compute each output that is a constant; the constant gets another name."""
    outputs = {value.name for value in model.graph.output}
    renamed = {
        tensor.name: f"{tensor.name}/constant"
        for tensor in model.graph.initializer
        if tensor.name in outputs
    }
    if not renamed:
        return
    for tensor in model.graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)
    _rename_inputs(model.graph.node, renamed)
    for name, constant in renamed.items():
        model.graph.node.append(helper.make_node("Identity", [constant], [name], name))
    if not any(item.domain in ("", "ai.onnx") for item in model.opset_import):
        model.opset_import.add(domain="", version=17)


def _rename_inputs(nodes: Iterable[onnx.NodeProto], renamed: dict[str, str]) -> None:
    for node in nodes:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        for graph in subgraphs(node):
            _rename_inputs(graph.node, renamed)


def check_ports(model: onnx.ModelProto, types: ValueTypes, path: Path) -> None:
    """Check that requests can carry inputs and outputs.

    Raises:
        CompileError: one of them has a type that the Open Inference Protocol does not have.
    """
    for kind, ports in (("input", model.graph.input), ("output", model.graph.output)):
        for port in ports:
            loose: Loose | None = types.loose.get(port.name)
            if loose is not None and loose.array is None:
                raise CompileError(f"{path}: {kind}: {loose.reason}, which no request can carry")


def domains(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the operator sets that ``node`` and its subgraphs use."""
    yield node.domain
    for graph in subgraphs(node):
        for inner in graph.node:
            yield from domains(inner)
