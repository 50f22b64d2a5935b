"""Softmax, means, and batch normalisations that nothing was folded into."""

import math

import numpy as np

from models.network.node import UnsuitedError
from models.network.operators.reading import BatchNorm, GroupNorm, Reduction, Softmax
from pipeline.export_c.lowering.builder import StepBuilder
from pipeline.export_c.lowering.elements import function_of
from pipeline.export_c.lowering.movement import with_order
from pipeline.export_c.lowering.steps import After, StructConstant, ValuePointer, Weight

_REDUCED = {"largest": "largest_of_planes", "mean": "average_of_planes"}


def softmax(to: StepBuilder, operator: Softmax) -> None:
    """Add a softmax along numbers that lie ``inner`` apart."""
    if operator.logarithm:
        raise UnsuitedError("the logarithm has no function in C")
    x, y = operator.x, operator.y
    to.step(
        y,
        "softmax",
        *(ValuePointer(x.name), to.make(y), operator.outer, operator.length, operator.inner),
        in_place=(x.name,),
        pointwise=True,
    )


def group_norm(to: StepBuilder, operator: GroupNorm) -> None:
    """Add a LayerNormalization: each number of a group has a factor of its own."""
    if operator.scale is None or (operator.channels, operator.inner) != (operator.length, 1):
        raise UnsuitedError("groups of channels; layers can be exported")
    x, y = operator.x, operator.y
    to.step(
        y,
        "normalise_rows",
        *(ValuePointer(x.name), to.weight(operator.scale), to.weight(operator.bias), to.make(y)),
        *(math.prod(x.shape) // operator.length, operator.length, operator.epsilon),
        in_place=(x.name,),
        pointwise=True,
        after=After(),
    )


def reduction(to: StepBuilder, operator: Reduction) -> None:
    """Add a mean or a maximum of dimensions; a copy puts them last if others lie behind them."""
    kernel = _REDUCED.get(operator.kind)
    if kernel is None:
        raise UnsuitedError(f"{operator.kind}; means and the largest can be exported")
    x, y, gone = operator.x, operator.y, operator.axes
    kept = [axis for axis in range(len(x.shape)) if axis not in gone]
    source = with_order(to, x, (*kept, *gone), f"{y.name}/turned")
    size = math.prod(y.shape), math.prod(x.shape[axis] for axis in gone)
    to.step(y, kernel, ValuePointer(source.name), to.make(y), *size, after=After())


def batch_norm(to: StepBuilder, operator: BatchNorm) -> None:
    """Add a factor and a term for each channel.

    Each operation rounds to float, as ONNX Runtime does: in a quantised network its results become bytes.
    """
    x, y = operator.x, operator.y
    scale, bias, average, variance = (
        to.constant(value).astype(np.float32)
        for value in (operator.scale, operator.bias, operator.mean, operator.variance)
    )
    factor = np.float32(1) / np.sqrt(variance + np.float32(operator.epsilon)) * scale
    term = bias - average * factor
    fields = {"batch": x.shape[0], "channels": x.shape[1], "plane": math.prod(x.shape[2:])}
    to.step(
        y,
        "scale_channels",
        *(ValuePointer(x.name), Weight(factor)),
        *(Weight(term), to.make(y), StructConstant("planes", fields)),
        in_place=(x.name,),
        pointwise=True,
        after=After(function=function_of(operator.activation)),
    )
