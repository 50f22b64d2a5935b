"""Write an ONNX model whose weights are too large to be held twice: one file, one weight at a time.

A *skeleton* is a model whose weights are declared (name, dims, data type) but hold no data.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.errors import ModelError
from models.graphs.file import FileRange, refer
from models.graphs.graph import Graph
from models.graphs.reader import graph_of
from models.runtime.wire import varint
from models.whole_files import check_users_file, sync, users_file

# A protobuf message cannot exceed 2 GiB; weights beyond this go into a file beside the model.
EXTERNAL_DATA_BYTES = 1 << 30

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


def skeleton_graph(skeleton: onnx.ModelProto) -> Graph:
    """Return the graph of ``skeleton``: weights that it declares are zeros which take no memory."""
    model, tensors = _split(skeleton)
    graph = graph_of(model)
    zero = np.zeros((), np.float32)
    weights = {tensor.name: np.broadcast_to(zero, tuple(tensor.dims)) for tensor in tensors}
    return replace(graph, constants={**graph.constants, **weights})


def _has_data(tensor: TensorProto) -> bool:
    field = helper.tensor_dtype_to_field(tensor.data_type)
    return tensor.HasField("raw_data") or bool(len(getattr(tensor, field)))


def data_path(path: Path) -> Path:
    """Return where the weights of the model ``path`` are when they do not fit into it."""
    return Path(f"{path}.data")


def check_place(path: Path) -> None:
    """Refuse a ``path`` that ``write_onnx`` could not write, before there are weights that could be lost.

    Raises:
        ModelError: it cannot be written.
    """
    try:
        check_users_file(path)
    except OSError as exc:
        raise ModelError(f"{path}: {exc.strerror or exc}") from exc


def write_onnx(
    skeleton: onnx.ModelProto, weights: Mapping[str, NDArray[np.float32]], path: Path
) -> None:
    """Write ``skeleton`` with ``weights`` (float32, one for each that it declares) to ``path``.

    Weights of 1 GiB and more go to ``path`` + ".data" as ONNX external data.

    Raises:
        ModelError: a file cannot be written; then both are what they were before.
    """
    shapes = declared(skeleton)
    wrong = [name for name in shapes if shapes[name] != weights[name].shape]
    assert not wrong, f"shapes differ from the skeleton's: {wrong}"
    total = sum(4 * math.prod(shape) for shape in shapes.values())
    data = data_path(path)
    try:
        if total >= EXTERNAL_DATA_BYTES:
            _write_external(skeleton, weights, path, data)
        else:
            with users_file(path) as file:
                _write_whole(skeleton, weights, file)
    except OSError as exc:
        raise ModelError(f"{path}: {exc.strerror or exc}") from exc


def _write_whole(
    skeleton: onnx.ModelProto, weights: Mapping[str, NDArray[np.float32]], file: BinaryIO
) -> None:
    """Write the message field by field: equal fields of a message may lie apart in a file."""
    model, tensors = _split(skeleton)
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


def _split(skeleton: onnx.ModelProto) -> tuple[onnx.ModelProto, list[TensorProto]]:
    """Return ``skeleton`` without the tensors that wait for data, and those."""
    waiting = declared(skeleton)
    model = onnx.ModelProto()
    model.CopyFrom(skeleton)
    tensors = [tensor for tensor in skeleton.graph.initializer if tensor.name in waiting]
    kept = [tensor for tensor in skeleton.graph.initializer if tensor.name not in waiting]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model, tensors


def _header(tensor: TensorProto, weights: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Return what precedes the raw data of ``tensor`` in its graph."""
    n_bytes = 4 * weights[tensor.name].size
    own = tensor.SerializeToString(deterministic=True) + varint(_RAW_DATA_TAG) + varint(n_bytes)
    return varint(_INITIALIZER_TAG) + varint(len(own) + n_bytes) + own


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array, "<f4").reshape(-1).view(np.uint8).data


def _write_external(
    skeleton: onnx.ModelProto, weights: Mapping[str, NDArray[np.float32]], path: Path, data: Path
) -> None:
    model, tensors = _split(skeleton)
    with users_file(path) as whole, users_file(data) as file:
        for tensor in tensors:
            placed = model.graph.initializer.add()
            placed.CopyFrom(tensor)
            n_bytes = 4 * weights[tensor.name].size
            refer(placed, FileRange(data, file.tell(), n_bytes), data.name)
            file.write(_bytes(weights[tensor.name]))
        whole.write(model.SerializeToString(deterministic=True))
        sync(whole)  # before the weights are in their place: none are there whose model cannot be
