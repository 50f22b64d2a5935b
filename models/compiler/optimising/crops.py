"""A crop of several axes, said as one of each: some rows, then some columns of these.

On rows (models/compiler/cutting/rows.py) the first is what is read and the second a kernel. That is said
behind ONNX Runtime, which would make one node of the rows that two patches share, and keep
them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from models.graphs.nodes import reads, replace_nodes

#: Inputs: what is cut, starts, ends, axes, then perhaps steps.
_AXES = 3


def take_crops_apart(model: onnx.ModelProto) -> None:
    """Replace each Slice of ``model`` with constant places on several axes by one for each axis."""
    wanted = {name for node in model.graph.node if _is_slice(node) for name in reads(node)[1:]}
    tensors = {
        tensor.name: numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.name in wanted
    }
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        given = [tensors[name] for name in node.input[1:] if name in tensors]
        known = _is_slice(node) and len(given) == len(node.input) - 1
        if known and _is_crop(given):
            nodes += _one_by_one(model.graph, node, given)
        else:
            nodes.append(node)
    replace_nodes(model, nodes)


def _is_slice(node: onnx.NodeProto) -> bool:
    return node.op_type == "Slice" and node.domain in ("", "ai.onnx") and len(node.input) > _AXES


def _is_crop(given: Sequence[NDArray[Any]]) -> bool:
    return given[0].size > 1 and all((step == 1).all() for step in given[_AXES:])


def _one_by_one(
    graph: onnx.GraphProto, node: onnx.NodeProto, given: Sequence[NDArray[Any]]
) -> Iterator[onnx.NodeProto]:
    """Yield a Slice for each axis; their constants go to ``graph``."""
    source = node.input[0]
    count = given[0].size
    for number in range(count):
        last = number == count - 1
        result = node.output[0] if last else f"{node.output[0]}.axis{number}"
        label = f"{node.output[0]}.place{number}"
        places = [item[number : number + 1] for item in given[:_AXES]]
        names = [f"{label}.{part}" for part in ("start", "end", "axis")]
        graph.initializer.extend(
            numpy_helper.from_array(place, name) for place, name in zip(places, names, strict=True)
        )
        name = node.name if last else result
        yield helper.make_node("Slice", [source, *names], [result], name=name)
        source = result
