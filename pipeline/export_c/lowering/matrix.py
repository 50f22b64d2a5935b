"""Products with a constant matrix, which is stored by outputs: Gemm and MatMul."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.export_c.lowering.node import Operation, items
from pipeline.export_c.lowering.steps import After, Record, Rows, Value, Weight


def gemm(operation: Operation) -> None:
    """Gemm: alpha A B + beta C, B and C constant."""
    operation.floats(0, 1)
    alpha, beta = operation.attribute("alpha", 1.0), operation.attribute("beta", 1.0)
    if operation.attribute("transA", 0):
        operation.refuse("transA: its first matrix is turned round")
    matrix = operation.constant(1)
    matrix = matrix if operation.attribute("transB", 0) else matrix.T
    bias = operation.optional(2)
    if bias is not None and bias.shape not in {(len(matrix),), (1, len(matrix)), (1,), ()}:
        operation.refuse(f"a bias of shape {list(bias.shape)}")
    if bias is not None:
        bias = np.ascontiguousarray(np.broadcast_to(beta * bias.reshape(-1), len(matrix)))
    _dense(operation, np.float32(alpha) * matrix, bias)


def matmul(operation: Operation) -> None:
    """MatMul by a constant matrix."""
    operation.floats(0, 1)
    matrix = operation.constant(1)
    if matrix.ndim != 2:
        operation.refuse(f"a constant of shape {list(matrix.shape)}, not a matrix")
    _dense(operation, matrix.T, None)


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
        None if bias is None else Weight(bias.astype(np.float32)),
        Value(made),
        Record("matrix", sizes),
        Rows(outputs),
        after=After(adds=True),
    )
