"""Launches of kernels/softmax.cu."""

from pipeline.devices.cuda.call import Call, Pointer
from pipeline.devices.cuda.calls.launches import per_element, per_group


def softmax(
    x: Pointer, y: Pointer, outer: int, length: int, inner: int, logarithm: bool = False
) -> Call:
    """Return the launch of a softmax, or its logarithm, along ``length`` of [outer, length, inner].

    Raises:
        ValueError: there is nothing to compute, or too much.
    """
    if inner == 1:
        return per_group("softmax", "softmax_rows", outer, length, x, y, length, int(logarithm))
    numbers = (outer * inner, length, inner, int(logarithm))
    return per_element("softmax", "softmax_columns", outer * inner, x, y, *numbers)
