"""What windows that move over an image need of its rows and columns, and nodes without their padding."""

from collections.abc import Sequence

import onnx

from models.graphs.nodes import attributes, with_attributes
from models.network.operators import Convolution, Pool
from models.network.windows import Window
from models.packs.records.rows import Outside

Windowed = Convolution | Pool


def window_of(operator: Windowed, axis: int) -> Window | None:
    """Return the window of rows (axis 0) or columns (1); None where those at the border are special."""
    windows = operator.windows
    given = windows.axes[axis]
    window = given.fitted(windows.size[axis], windows.result[axis])
    if max(window.before, window.behind) >= window.reach:
        return None  # the first or the last are made of padding alone
    reaches_out = max(window.before, window.behind) > 0
    if isinstance(operator, Pool) and operator.kind == "mean" and reaches_out:
        is_counted = operator.counts_padding and window.behind <= given.behind
        return window if is_counted else None  # means of fewer
    if fill_of(operator) == "lowest" and window.behind > 0:
        return None  # a NaN behind which a lowest number comes is lost
    return window


def fill_of(operator: Windowed) -> Outside:
    """Return what memory holds around the input.

    ONNX Runtime's maximum forgets a NaN when another number follows it. The last row again changes nothing,
    as long as it is in each window that reaches behind the input: where the kernel is not dilated.
    """
    if isinstance(operator, Convolution) or operator.kind == "mean":
        return "zero"
    return "lowest" if set(operator.windows.dilations) != {1} else "edge"


def loses_bits(operator: Windowed) -> bool:
    """Return whether a node without its padding is computed in another way.

    One pixel at a time is a product of matrices, which adds up in another order.
    """
    windows = operator.windows
    is_padded = any((*windows.before, *windows.behind))
    return isinstance(operator, Convolution) and max(windows.kernel) == 1 and is_padded


def padded(node: onnx.NodeProto, pads: Sequence[int]) -> onnx.NodeProto:
    """Return ``node`` with other padding."""
    if attributes(node).get("auto_pad", "NOTSET") != "NOTSET":
        node = with_attributes(node, auto_pad=None)
    return with_attributes(node, pads=list(pads))
