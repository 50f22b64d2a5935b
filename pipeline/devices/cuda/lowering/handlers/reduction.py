"""Many numbers to one, over whole axes."""

from pipeline.devices.cuda.call import Call
from pipeline.devices.cuda.calls.reduce import After, Before, Reduction, reduce
from pipeline.devices.cuda.calls.strided import copy_bytes
from pipeline.devices.cuda.lowering.handlers.base import Handler, axis_of
from pipeline.devices.cuda.lowering.node import Node
from pipeline.devices.cuda.lowering.scope import Scope

_MEAN = Reduction("sum", after=After.MEAN)
_LARGEST = Reduction("largest")


def _over_axes(reduction: Reduction) -> Handler:
    """Return the handler of an operator whose axes are an attribute or, in new opsets, an input."""

    def handle(node: Node, scope: Scope) -> list[Call]:
        x, y = node.input(0), node.output
        shape = scope.shape(x)
        axes = scope.integers(node, 1, "axes")
        source, target = scope.read(x), scope.write(y)
        if not axes and node.attribute("noop_with_empty_axes", 0):
            return [copy_bytes(source, target, scope.value(x).n_bytes)]
        chosen = [axis_of(axis, len(shape)) for axis in axes or range(len(shape))]
        return [reduce(source, target, shape, chosen, reduction)]

    return handle


def _over_planes(reduction: Reduction) -> Handler:
    """Return the handler of a global pool: over all axes behind the channels."""

    def handle(node: Node, scope: Scope) -> list[Call]:
        x, y = node.input(0), node.output
        shape = scope.shape(x)
        axes = range(2, len(shape))
        return [reduce(scope.read(x), scope.write(y), shape, axes, reduction)]

    return handle


OPERATORS: dict[str, Handler] = {
    "GlobalAveragePool": _over_planes(_MEAN),
    "GlobalMaxPool": _over_planes(_LARGEST),
    "ReduceL1": _over_axes(Reduction("sum", before=Before.MAGNITUDE)),
    "ReduceL2": _over_axes(Reduction("sum", before=Before.SQUARE, after=After.ROOT)),
    "ReduceMax": _over_axes(_LARGEST),
    "ReduceMean": _over_axes(_MEAN),
    "ReduceMin": _over_axes(Reduction("smallest")),
    "ReduceProd": _over_axes(Reduction("product")),
    "ReduceSum": _over_axes(Reduction("sum")),
    "ReduceSumSquare": _over_axes(Reduction("sum", before=Before.SQUARE)),
}
