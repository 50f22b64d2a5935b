"""Pools whose output ONNX Runtime foresees larger than it computes it.

With ``ceil_mode`` a last window that begins in the padding is left out; the shape that is inferred counts
it. Such a pool is said again without ``ceil_mode``, with padding that gives what is computed.
"""

from collections.abc import Mapping

import onnx
from onnx import helper

from models.graphs.nodes import attributes

_POOLS = ("MaxPool", "AveragePool", "LpPool")


def settle_pool(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Change the first pool of ``model`` whose output in ``shapes`` is not what is computed.

    Shapes behind it are then wrong, too: infer them again, and call this again until it returns False.
    """
    for node in model.graph.node:
        if node.op_type not in _POOLS or node.input[0] not in shapes:
            continue
        known = attributes(node)
        if not known.get("ceil_mode", 0) or known.get("auto_pad", b"NOTSET") not in (
            b"NOTSET",
            "NOTSET",
        ):
            continue
        computed, ends = _computed(known, shapes[node.input[0]][2:])
        if tuple(shapes[node.output[0]][2:]) != computed:
            pads = [*known.get("pads", [0] * 2 * len(ends))[: len(ends)], *ends]
            _set(node, "ceil_mode", 0)
            _set(node, "pads", pads)
            _forget_shapes(model.graph)
            return True
    return False


def _computed(
    known: Mapping[str, object], size: tuple[int, ...]
) -> tuple[tuple[int, ...], list[int]]:
    """Return the output of a pool, and the padding at the ends that gives it without ``ceil_mode``."""
    rank = len(size)

    def of(name: str, default: int) -> list[int]:
        return list(known.get(name, [default] * rank))  # type: ignore[call-overload, no-any-return]

    pads = list(known.get("pads", [0] * 2 * rank))  # type: ignore[call-overload]
    computed, ends = [], []
    for axis, (length, kernel, stride, dilation) in enumerate(
        zip(size, of("kernel_shape", 1), of("strides", 1), of("dilations", 1), strict=True)
    ):
        begin, end = pads[axis], pads[rank + axis]
        room = length + begin + end - dilation * (kernel - 1) - 1
        count = -(-room // stride) + 1
        if (count - 1) * stride >= length + begin:
            count -= 1
        computed.append(count)
        ends.append(end + max((count - 1) * stride - room, 0))
    return tuple(computed), ends


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Remove what was inferred from the larger output."""
    del graph.value_info[:]
    for port in graph.output:
        port.type.tensor_type.ClearField("shape")


def _set(node: onnx.NodeProto, name: str, value: int | list[int]) -> None:
    kept = [item for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
