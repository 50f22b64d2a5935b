"""Softmax, means, and batch normalisations that nothing was folded into."""

import numpy as np

from pipeline.export_c.lowering.movement import identity, rows_of
from pipeline.export_c.lowering.node import Operation, items
from pipeline.export_c.lowering.steps import After, Record, Value, Weight

_LATER_SOFTMAX = 13


def softmax(operation: Operation) -> None:
    """Softmax; before operator set 13 over all dimensions from an axis on."""
    operation.floats(0)
    shape, later = operation.shape(0), operation.node.opset >= _LATER_SOFTMAX
    axis = int(operation.attribute("axis", -1 if later else 1))
    axis += len(shape) if axis < 0 else 0
    length, inner = items(shape[axis : axis + 1] if later else shape[axis:]), 1
    if later:
        inner = items(shape[axis + 1 :])
    made = operation.make(shape)
    operation.step(
        "softmax",
        *(Value(operation.name(0)), Value(made), items(shape) // (length * inner), length, inner),
        in_place=(operation.name(0),),
        pointwise=True,
    )


def layer_normalization(operation: Operation) -> None:
    """LayerNormalization over the last dimensions."""
    operation.floats(0, 1)
    if len([name for name in operation.node.outputs if name]) > 1:
        operation.refuse("means and deviations as outputs")
    shape = operation.shape(0)
    axis = int(operation.attribute("axis", -1)) % len(shape)
    length = items(shape[axis:])
    scale, bias = operation.constant(1), operation.optional(2)
    if scale.size != length or (bias is not None and bias.size != length):
        operation.refuse(f"a factor {list(scale.shape)} for {list(shape)}")
    made = operation.make(shape)
    operation.step(
        "normalise_rows",
        *(Value(operation.name(0)), Weight(np.ascontiguousarray(scale, np.float32))),
        None if bias is None else Weight(np.ascontiguousarray(bias, np.float32)),
        *(Value(made), items(shape[:axis]), length),
        float(operation.attribute("epsilon", 1e-5)),
        in_place=(operation.name(0),),
        pointwise=True,
        after=After(),
    )


def mean(operation: Operation) -> None:
    """ReduceMean over any dimensions."""
    _reduced(operation, "average_of_planes")


def largest(operation: Operation) -> None:
    """ReduceMax over any dimensions."""
    _reduced(operation, "largest_of_planes")


def _reduced(operation: Operation, kernel: str) -> None:
    """Add ``kernel`` on the dimensions that go; a copy puts them last if others lie behind them."""
    operation.floats(0)
    shape, axes = operation.shape(0), operation.integers(1, "axes")
    if not axes and operation.attribute("noop_with_empty_axes", 0):
        identity(operation)
        return
    gone = {axis % len(shape) for axis in axes or range(len(shape))}
    kept = [axis for axis in range(len(shape)) if axis not in gone]
    source = rows_of(operation, (*kept, *sorted(gone)))
    ones = operation.attribute("keepdims", 1)
    lengths = [1 if axis in gone else n for axis, n in enumerate(shape)]
    made = operation.make(tuple(lengths) if ones else tuple(shape[axis] for axis in kept))
    size = items(lengths), items([shape[axis] for axis in gone])
    operation.step(kernel, Value(source), Value(made), *size, after=After())


def batch_normalization(operation: Operation) -> None:
    """BatchNormalization as at inference: a factor and a term for each channel.

    Each operation rounds to float, as ONNX Runtime does: in a quantised network its results become bytes.
    """
    operation.floats(0)
    shape, epsilon = operation.shape(0), np.float32(operation.attribute("epsilon", 1e-5))
    scale, bias, average, variance = (
        operation.constant(n).astype(np.float32) for n in (1, 2, 3, 4)
    )
    if operation.attribute("training_mode", 0) or scale.size != shape[1]:
        operation.refuse(f"training_mode, or {scale.size} factors for {shape[1]} channels")
    factor = np.float32(1) / np.sqrt(variance + epsilon) * scale
    term = bias - average * factor
    made = operation.make(shape)
    fields = {"batch": shape[0], "channels": shape[1], "plane": items(shape[2:])}
    operation.step(
        "scale_channels",
        *(Value(operation.name(0)), Weight(factor)),
        *(Weight(term), Value(made), Record("planes", fields)),
        in_place=(operation.name(0),),
        pointwise=True,
        after=After(),
    )
