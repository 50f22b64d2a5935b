"""Resize: elements that are repeated are a copy, others lie between two rows and two columns."""

import math

import numpy as np

from models.network.node import UnsuitedError
from models.network.operators.movement import Copy, strides_of
from models.network.operators.reading import Resize
from models.network.operators.resizing import Resized
from pipeline.export_c.lowering.builder import StepBuilder
from pipeline.export_c.lowering.movement import copy
from pipeline.export_c.lowering.steps import After, StructConstant, Weight

_SIDES = 2
_TAPS = 2


def resize(to: StepBuilder, operator: Resize) -> None:
    """Add a copy where elements are repeated, each as often; else rows and columns are looked up."""
    x, y, factors = operator.x, operator.y, operator.factors
    if factors is not None:
        _repeated(to, operator, factors)
        return
    if x.dtype != "float32":
        raise UnsuitedError(f"{x.dtype}, not float32")
    if len(x.shape) < _SIDES or not operator.of_planes:
        raise UnsuitedError(
            f"{list(x.shape)} to {list(y.shape)}; the last two dimensions can be resized"
        )
    sides = [weight for axis in operator.axes[-_SIDES:] for weight in _between(axis)]
    fields = {
        "planes": math.prod(y.shape[:-_SIDES]),
        "size_y": x.shape[-2],
        "size_x": x.shape[-1],
        "result_y": y.shape[-2],
        "result_x": y.shape[-1],
    }
    record, read = StructConstant("resizing", fields), to.operand(x)
    to.step(y, "resize", read, *sides, to.make(y), record, after=After())


def _repeated(to: StepBuilder, operator: Resize, factors: tuple[int, ...]) -> None:
    # Each dimension as two: its elements, and how often each of them is repeated.
    x, y = operator.x, operator.y
    sizes = tuple(n for pair in zip(x.shape, factors, strict=True) for n in pair)
    read = tuple(n for stride in strides_of(x.shape) for n in (stride, 0))
    to.make(y)
    copy(to, Copy(x=x, y=y, sizes=sizes, read=read, written=strides_of(sizes)))


def _between(axis: Resized) -> tuple[Weight, Weight]:
    """Return the two elements that each one lies between, and the part of the second."""
    taps = axis.indices.shape[1]
    if taps > _TAPS:
        raise UnsuitedError(f"means of {taps} neighbours; two can be exported")
    pairs = np.broadcast_to(axis.indices, (len(axis.indices), _TAPS)) if taps == 1 else axis.indices
    parts = np.zeros(len(pairs), np.float32) if axis.weights is None else axis.weights[:, 1]
    return Weight(np.ascontiguousarray(pairs)), Weight(np.ascontiguousarray(parts))
