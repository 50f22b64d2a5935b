"""Products with a constant matrix, which is stored by outputs, and of two tensors: Gemm and MatMul."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.export_c.lowering.elementwise import combine
from pipeline.export_c.lowering.node import Operation, items
from pipeline.export_c.lowering.steps import After, Record, Rows, Value, Weight

_RANK = 2


def gemm(operation: Operation) -> None:
    """Gemm: alpha A B + beta C; by a constant B its outputs can be computed some at a time."""
    operation.floats(0, 1)
    alpha, beta = (np.float32(operation.attribute(name, 1.0)) for name in ("alpha", "beta"))
    turned = bool(operation.attribute("transA", 0)), bool(operation.attribute("transB", 0))
    bias = operation.constant(2) if operation.is_constant(2) else None
    if operation.is_constant(1) and not turned[0] and (bias is not None or not operation.has(2)):
        matrix = operation.constant(1) if turned[1] else operation.constant(1).T
        if bias is None or bias.shape in {(len(matrix),), (1, len(matrix)), (1,), (1, 1), ()}:
            if bias is not None:
                bias = np.broadcast_to((beta * bias).reshape(-1), len(matrix))
            _dense(operation, alpha * matrix, bias)
            return
    if not operation.has(2):
        _of_tensors(operation, turned, float(alpha))
        return
    product = f"{operation.node.output}/product"
    _of_tensors(operation.on(operation.node.inputs, product), turned, float(alpha))
    added = operation.name(2)
    if beta != 1:
        added, factor = f"{operation.node.output}/added", f"{operation.node.output}/beta"
        operation.fold(np.array(beta), factor)
        if bias is not None:
            operation.fold(beta * bias, added)
        else:
            combine(operation.on([operation.name(2), factor], added), "Mul")
    combine(operation.on([product, added]), "Add")


def matmul(operation: Operation) -> None:
    """MatMul; by a constant matrix its outputs can be computed some at a time."""
    operation.floats(0, 1)
    if operation.is_constant(1) and operation.constant(1).ndim == _RANK:
        _dense(operation, operation.constant(1).T, None)
    else:
        _of_tensors(operation, turned=(False, False), scale=1.0)


def fused_matmul(operation: Operation) -> None:
    """FusedMatMul: of matrices that may be turned round, times a number."""
    operation.floats(0, 1)
    if operation.attribute("transBatchA", 0) or operation.attribute("transBatchB", 0):
        operation.refuse("matrices whose rows lie apart: transBatchA or transBatchB")
    turned = bool(operation.attribute("transA", 0)), bool(operation.attribute("transB", 0))
    _of_tensors(operation, turned, float(operation.attribute("alpha", 1.0)))


def _of_tensors(operation: Operation, turned: tuple[bool, bool], scale: float) -> None:
    """Add the product of matrices, the last dimensions; others are alike, or the second has none."""
    shapes = operation.shape(0), operation.shape(1)
    sizes, strides = [], []
    for shape, is_turned in zip(shapes, turned, strict=True):
        *_, rows, columns = (1, 1, *shape)
        sizes.append((columns, rows) if is_turned else (rows, columns))
        strides.append((1, columns) if is_turned else (columns, 1))
    (rows, depth), (others, outputs) = sizes
    alone = len(shapes[1]) == _RANK
    alike = alone or shapes[0][:-_RANK] == shapes[1][:-_RANK]
    if min(map(len, shapes)) < _RANK or depth != others or not alike:
        operation.refuse(f"matrices {list(shapes[0])} and {list(shapes[1])}")
    made = operation.make((*shapes[0][:-_RANK], rows, outputs))
    fields: dict[str, int | float | tuple[int, ...]] = {
        "batch": items(shapes[0][:-_RANK]),
        "rows": rows,
        "depth": depth,
        "outputs": outputs,
        "x_row": strides[0][0],
        "x_item": strides[0][1],
        "w_matrix": 0 if alone else depth * outputs,
        "w_item": strides[1][0],
        "w_output": strides[1][1],
        "scale": scale,
    }
    operation.step(
        "multiply_tensors",
        *(operation.operand(0), operation.operand(1), Value(made), Record("matrices", fields)),
        after=After(),
    )


def _dense(operation: Operation, matrix: NDArray[Any], bias: NDArray[Any] | None) -> None:
    shape = operation.shape(0)
    outputs, depth = matrix.shape
    if not shape or shape[-1] != depth:
        operation.refuse(f"a matrix of {depth} by {outputs} on {list(shape)}")
    made = operation.make((*shape[:-1], outputs))
    sizes = {"rows": items(shape[:-1]), "depth": depth, "outputs": outputs}
    operation.step(
        "multiply",
        Value(operation.name(0)),
        Weight(np.ascontiguousarray(matrix, np.float32), rows=True),
        None if bias is None else Weight(np.ascontiguousarray(bias, np.float32)),
        Value(made),
        Record("matrix", sizes),
        Rows(outputs),
        after=After(adds=True),
    )
