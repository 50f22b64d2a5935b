"""What a handler is."""

from collections.abc import Callable

from pipeline.devices.cuda.call import Call
from pipeline.devices.cuda.lowering.node import Node
from pipeline.devices.cuda.lowering.scope import Scope

#: Returns the launches of a node. Raises UnsuitedError, or ValueError where a tensor is too large.
Handler = Callable[[Node, Scope], list[Call]]


def axis_of(axis: int, rank: int) -> int:
    """Return ``axis`` counted from the first one."""
    return axis + rank if axis < 0 else axis
