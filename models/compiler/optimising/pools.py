"""Pools whose output ONNX Runtime foresees larger than it computes it.

With ``ceil_mode`` a last window that begins in the padding is left out; the shape that is inferred counts
it. Such a pool is said again with padding of which the shape comes that is computed.
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
        computed, spare = _computed(known, shapes[node.input[0]][2:])
        if tuple(shapes[node.output[0]][2:]) != computed:
            rank = len(spare)
            pads = list(known.get("pads", [0] * 2 * rank))
            ends = [end - max(n, 0) for end, n in zip(pads[rank:], spare, strict=True)]
            if min(ends) < 0:  # windows so far apart that one less leaves a part of the input
                _set(node, "ceil_mode", 0)
                ends = [end + max(-n, 0) for end, n in zip(pads[rank:], spare, strict=True)]
            _set(node, "pads", [*pads[:rank], *ends])
            _forget_shapes(model.graph)
            return True
    return False


def _computed(
    known: Mapping[str, object], size: tuple[int, ...]
) -> tuple[tuple[int, ...], list[int]]:
    """Return the output of a pool, and what is left behind its last windows (less than 0: beyond)."""
    rank = len(size)

    def of(name: str, default: int) -> list[int]:
        return list(known.get(name, [default] * rank))  # type: ignore[call-overload, no-any-return]

    pads = list(known.get("pads", [0] * 2 * rank))  # type: ignore[call-overload]
    computed, spare = [], []
    for axis, (length, kernel, stride, dilation) in enumerate(
        zip(size, of("kernel_shape", 1), of("strides", 1), of("dilations", 1), strict=True)
    ):
        begin, end = pads[axis], pads[rank + axis]
        room = length + begin + end - dilation * (kernel - 1) - 1
        count = -(-room // stride) + 1
        if (count - 1) * stride >= length + begin:
            count -= 1
        computed.append(count)
        spare.append(room - (count - 1) * stride)
    return tuple(computed), spare


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Remove what was inferred from the larger output."""
    del graph.value_info[:]
    for port in graph.output:
        port.type.tensor_type.ClearField("shape")


def _set(node: onnx.NodeProto, name: str, value: int | list[int]) -> None:
    kept = [item for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
