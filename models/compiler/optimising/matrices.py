"""Constant matrices of fully connected layers, stored by output row, so that they can be split."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from models.graphs.file import reference
from models.graphs.nodes import attributes, reads, set_attributes
from models.network.fields import Array
from models.network.operators.matrix import GEMMS

# The first operator set whose Gemm needs no third input.
_GEMM_WITHOUT_BIAS = 11
_PRODUCTS = frozenset({"float32", "float64"})


def store_by_row(
    model: onnx.ModelProto, values: Mapping[str, Array], constants: dict[str, NDArray[Any]]
) -> None:
    """Turn constant matrices of ``model`` round where this changes nothing but their place.

    ``Gemm`` with transB=0 becomes transB=1, and so does a ``MatMul`` of one row; others compute several
    rows, whose results do not lie together by output channel. Nothing is copied here: a constant becomes
    a view with its axes swapped.
    """
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    uses = Counter(name for node in model.graph.node for name in reads(node))
    version = max((item.version for item in model.opset_import if item.domain == ""), default=0)
    for node in model.graph.node:
        by_column = _is_gemm_by_column(node) or (
            version >= _GEMM_WITHOUT_BIAS and _is_row_product(node, values)
        )
        tensor = tensors.get(node.input[1]) if by_column else None
        if tensor is None or tensor.name not in constants or uses[tensor.name] != 1:
            continue
        if len(tensor.dims) == 2:
            _turn_round(tensor, constants)
            _transpose(node)


def _is_gemm_by_column(node: onnx.NodeProto) -> bool:
    return node.op_type in GEMMS and not attributes(node).get("transB", 0)


def _is_row_product(node: onnx.NodeProto, values: Mapping[str, Array]) -> bool:
    if node.op_type != "MatMul" or node.domain != "":
        return False
    row = values.get(node.input[0])
    return row is not None and len(row.shape) == 2 and row.shape[0] == 1 and row.dtype in _PRODUCTS


def _turn_round(tensor: onnx.TensorProto, constants: dict[str, NDArray[Any]]) -> None:
    matrix = constants[tensor.name] = constants[tensor.name].T
    if reference(tensor) is None:
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(matrix), tensor.name))
    else:
        tensor.dims[:] = matrix.shape


def _transpose(node: onnx.NodeProto) -> None:
    if node.op_type == "MatMul":
        node.op_type = "Gemm"
    set_attributes(node, transB=1)
