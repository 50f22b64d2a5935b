"""What windows that move over an image need of its rows and columns, and windows without their padding."""

from collections.abc import Sequence

import onnx
from onnx import helper

from models.compiler.analysis.graph import Graph
from models.graphs.nodes import attributes
from models.packs.records.rows import Outside, Window

#: Of a node that does not say.
NO_PADS = [0, 0, 0, 0]


def window_of(
    graph: Graph, node: onnx.NodeProto, axis: int, extent: int, made: int
) -> Window | None:
    """Return the rows (axis 0) or columns (1) that a convolution or a pool needs.

    ``extent``: how many there are of its input, ``made`` of its output. None where those at the border are
    special.
    """
    given = attributes(node)
    if given.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    above, below = given.get("pads", NO_PADS)[axis::2]
    kernel = (_sides(graph, node)[axis] - 1) * given.get("dilations", [1, 1])[axis] + 1
    stride = given.get("strides", [1, 1])[axis]
    last = (made - 1) * stride - above
    if above >= kernel or last >= extent:
        return None  # the first or the last are made of padding alone
    if node.op_type == "AveragePool":
        reached = last + kernel
        counted = given.get("count_include_pad", 0) and reached <= extent + below
        if not counted and (above or reached > extent):
            return None  # means of fewer
    fill = _fill(node)
    if fill == "lowest" and last + kernel > extent:
        return None  # a NaN behind which a lowest number comes is lost
    return Window(kernel=kernel, stride=stride, above=above, fill=fill)


def _fill(node: onnx.NodeProto) -> Outside:
    """Return what memory holds around the input of ``node``.

    ONNX Runtime's maximum forgets a NaN when another number follows it. The last row again changes nothing,
    as long as it is in each window that reaches behind the input: where the kernel is not dilated.
    """
    if node.op_type != "MaxPool":
        return "zero"
    return "lowest" if set(attributes(node).get("dilations", [1])) != {1} else "edge"


def loses_bits(graph: Graph, node: onnx.NodeProto) -> bool:
    """Return whether ``node`` without its padding is computed in another way.

    One pixel at a time is a product of matrices, which adds up in another order.
    """
    sides = _sides(graph, node)
    padded = any(attributes(node).get("pads", NO_PADS))
    return node.op_type == "Conv" and max(sides) == 1 and padded


def _sides(graph: Graph, node: onnx.NodeProto) -> Sequence[int]:
    """Return the rows and columns of a kernel."""
    given = attributes(node).get("kernel_shape")
    return given or graph.array(node.input[1]).shape[2:]


def padded(node: onnx.NodeProto, pads: Sequence[int]) -> onnx.NodeProto:
    """Return ``node`` with other padding."""
    found = onnx.NodeProto()
    found.CopyFrom(node)
    kept = [item for item in node.attribute if item.name != "pads"]
    del found.attribute[:]
    found.attribute.extend([*kept, helper.make_attribute("pads", list(pads))])
    return found
