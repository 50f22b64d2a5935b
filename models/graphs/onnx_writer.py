"""Write an ONNX model whose weights are too large to be held twice: one file, one weight at a time.

A *skeleton* is a model whose weights are declared (name, dims, data type) but hold no data.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.errors import ModelError
from models.runtime.wire import varint
from models.whole_files import check_users_file, users_file

# A protobuf message cannot exceed 2 GiB.
MOST_WEIGHT_BYTES = (1 << 31) - (1 << 24)

# Wire format: field number << 3 | 2 (length-delimited).
_GRAPH_TAG = onnx.ModelProto.GRAPH_FIELD_NUMBER << 3 | 2
_INITIALIZER_TAG = onnx.GraphProto.INITIALIZER_FIELD_NUMBER << 3 | 2
_RAW_DATA_TAG = onnx.TensorProto.RAW_DATA_FIELD_NUMBER << 3 | 2


def declare(name: str, shape: tuple[int, ...]) -> TensorProto:
    """Return a float32 weight of a skeleton."""
    return TensorProto(name=name, dims=shape, data_type=TensorProto.FLOAT)


def declared(skeleton: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the weights that ``skeleton`` declares without data: name -> shape."""
    return {
        tensor.name: tuple(tensor.dims)
        for tensor in skeleton.graph.initializer
        if math.prod(tensor.dims) and not _has_data(tensor)
    }


def _has_data(tensor: TensorProto) -> bool:
    field = helper.tensor_dtype_to_field(tensor.data_type)
    return tensor.HasField("raw_data") or bool(len(getattr(tensor, field)))


def check_place(skeleton: onnx.ModelProto, path: Path) -> None:
    """Refuse what ``write_onnx`` could not write to ``path``, before there are weights that could be lost.

    Raises:
        ModelError: it cannot be written, or the weights of ``skeleton`` do not fit into a file.
    """
    n_bytes = sum(4 * math.prod(shape) for shape in declared(skeleton).values())
    if n_bytes > MOST_WEIGHT_BYTES:
        raise ModelError(
            f"{path}: {n_bytes} bytes of weights are more than an ONNX file holds ({MOST_WEIGHT_BYTES})"
        )
    try:
        check_users_file(path)
    except OSError as exc:
        raise ModelError(f"{path}: {exc.strerror or exc}") from exc


def write_onnx(
    skeleton: onnx.ModelProto, weights: Mapping[str, NDArray[np.float32]], path: Path
) -> None:
    """Write ``skeleton`` with ``weights`` (float32, one for each that it declares) to ``path``.

    Raises:
        ModelError: the file cannot be written; then it is what it was before.
    """
    shapes = declared(skeleton)
    wrong = [name for name in shapes if shapes[name] != weights[name].shape]
    assert not wrong, f"shapes differ from the skeleton's: {wrong}"
    try:
        with users_file(path) as file:
            _write_whole(skeleton, weights, file)
    except OSError as exc:
        raise ModelError(f"{path}: {exc.strerror or exc}") from exc


def _write_whole(
    skeleton: onnx.ModelProto, weights: Mapping[str, NDArray[np.float32]], file: BinaryIO
) -> None:
    """Write the message field by field: equal fields of a message may lie apart in a file."""
    waiting = declared(skeleton)
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    tensors = [tensor for tensor in skeleton.graph.initializer if tensor.name in waiting]
    kept = [tensor for tensor in skeleton.graph.initializer if tensor.name not in waiting]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    graph = model.graph.SerializeToString(deterministic=True)
    model.ClearField("graph")
    headers = [_header(tensor, weights) for tensor in tensors]
    sizes = [4 * weights[tensor.name].size for tensor in tensors]
    graph_bytes = len(graph) + sum(map(len, headers)) + sum(sizes)
    file.write(model.SerializeToString(deterministic=True))
    file.write(varint(_GRAPH_TAG) + varint(graph_bytes) + graph)
    for tensor, header in zip(tensors, headers, strict=True):
        file.write(header)
        file.write(_bytes(weights[tensor.name]))


def _header(tensor: TensorProto, weights: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Return what precedes the raw data of ``tensor`` in its graph."""
    n_bytes = 4 * weights[tensor.name].size
    own = tensor.SerializeToString(deterministic=True) + varint(_RAW_DATA_TAG) + varint(n_bytes)
    return varint(_INITIALIZER_TAG) + varint(len(own) + n_bytes) + own


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array, "<f4").reshape(-1).view(np.uint8).data
