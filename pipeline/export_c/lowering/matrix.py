"""Products with a constant matrix, which is stored by outputs, and of two tensors."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.node import NamedTensor, UnsuitedError
from models.network.operators.reading import Combine, MatrixProduct
from pipeline.export_c.lowering.builder import StepBuilder
from pipeline.export_c.lowering.calls import (
    After,
    FilterRange,
    StructConstant,
    ValuePointer,
    Weight,
)
from pipeline.export_c.lowering.elements import combine, function_of

_RANK = 2


def product(to: StepBuilder, operator: MatrixProduct) -> None:
    """Add a product; by a constant matrix its outputs can be computed some at a time."""
    matrix, addend, outputs = to.held(operator.b), operator.addend, operator.columns
    bias = to.held(addend)
    by_output = bias is None or bias.shape in {(outputs,), (1, outputs), (1,), (1, 1), ()}
    by_output = by_output and (addend is None) == (bias is None) and not operator.turned[0]
    if matrix is not None and matrix.ndim == _RANK and by_output:
        _dense(to, operator, matrix, bias)
    elif addend is None:
        _of_tensors(to, operator, operator.y, After(function=function_of(operator.activation)))
    else:
        unadded = operator.y.named(f"{operator.y.name}/product")
        _of_tensors(to, operator, unadded, After())
        scaled = _scaled(to, operator, addend)
        operands, activation = (unadded, scaled), operator.activation
        combine(to, Combine(kind="add", operands=operands, y=operator.y, activation=activation))


def _scaled(to: StepBuilder, operator: MatrixProduct, addend: NamedTensor) -> NamedTensor:
    """Return ``addend`` times its factor."""
    factor, numbers = np.float32(operator.addend_scale), to.held(addend)
    if factor == 1:
        return addend
    scaled = addend.named(f"{operator.y.name}/added")
    if numbers is not None:
        to.fold(scaled, factor * numbers)
        return scaled
    number = NamedTensor(name=f"{operator.y.name}/factor", dtype="float32", shape=())
    to.fold(number, np.array(factor))
    combine(to, Combine(kind="multiply", operands=(addend, number), y=scaled))
    return scaled


def _of_tensors(to: StepBuilder, operator: MatrixProduct, y: NamedTensor, after: After) -> None:
    """Add the product of matrices, the last dimensions; others are alike, or the second has none."""
    batch, other = operator.batches
    if other and batch != other:
        raise UnsuitedError(f"matrices {list(operator.a.shape)} and {list(operator.b.shape)}")
    strides = [
        (1, value.shape[-1]) if is_turned else (value.shape[-1], 1)
        for value, is_turned in zip((operator.a, operator.b), operator.turned, strict=True)
    ]
    fields: dict[str, int | float | tuple[int, ...]] = {
        "batch": math.prod(batch),
        "rows": operator.rows,
        "depth": operator.depth,
        "outputs": operator.columns,
        "x_row": strides[0][0],
        "x_item": strides[0][1],
        "w_matrix": operator.depth * operator.columns if other else 0,
        "w_item": strides[1][0],
        "w_output": strides[1][1],
        "scale": operator.scale,
    }
    to.step(
        y,
        "multiply_tensors",
        *(
            to.operand(operator.a),
            to.operand(operator.b),
            to.make(y),
            StructConstant("matrices", fields),
        ),
        after=after,
    )


def _dense(
    to: StepBuilder, operator: MatrixProduct, matrix: NDArray[Any], bias: NDArray[Any] | None
) -> None:
    by_output = matrix if operator.turned[1] else matrix.T
    added = None
    if bias is not None:
        scaled = (np.float32(operator.addend_scale) * bias).reshape(-1)
        added = Weight(np.ascontiguousarray(np.broadcast_to(scaled, operator.columns), np.float32))
    sizes = {
        "rows": math.prod(operator.a.shape[:-1]),
        "depth": operator.depth,
        "outputs": operator.columns,
    }
    to.step(
        operator.y,
        "multiply",
        ValuePointer(operator.a.name),
        Weight(np.ascontiguousarray(np.float32(operator.scale) * by_output, np.float32), rows=True),
        added,
        to.make(operator.y),
        StructConstant("matrix", sizes),
        FilterRange(operator.columns),
        after=After(adds=True, function=function_of(operator.activation)),
    )
