"""Windows of convolutions and pools as kernels take them: on planes of two axes."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.devices.cuda.lowering.errors import UnsuitedError
from pipeline.devices.cuda.lowering.node import Node
from pipeline.devices.operators.base import Call as NumPyCall
from pipeline.devices.operators.window import window

Pair = tuple[int, int]


@dataclass(frozen=True)
class Planar:
    """Windows on planes; ``pads`` are top, left, bottom, right. What has one axis is one row."""

    size: Pair
    result: Pair
    kernel: Pair
    strides: Pair
    dilations: Pair
    pads: tuple[int, int, int, int]


def planar(node: Node, kernel: Sequence[int], shape: Sequence[int]) -> Planar:
    """Return the windows of ``kernel`` on an input of ``shape``, by the attributes of ``node``.

    Raises:
        UnsuitedError: more than two spatial axes, or the kernel does not fit.
    """
    spatial = shape[2:]
    if len(spatial) not in (1, 2):
        raise UnsuitedError(f"{len(spatial)} spatial axes")
    call = NumPyCall([], node.attributes, node.opset, len(node.outputs), 1)
    try:
        frame = window(call, kernel, spatial)
    except ValueError as exc:
        raise UnsuitedError(str(exc)) from exc
    begins, ends = _pair(frame.begins, 0), _pair(frame.ends, 0)
    return Planar(
        _pair(spatial, 1),
        _pair(frame.result, 1),
        _pair(frame.kernel, 1),
        _pair(frame.strides, 1),
        _pair(frame.dilations, 1),
        (*begins, *ends),
    )


def _pair(values: Sequence[int], missing: int) -> Pair:
    return (missing, values[0]) if len(values) == 1 else (values[0], values[1])
