"""Constants that the compiler makes itself: small ones in their messages, large ones in a file."""

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from models.compiler.analysis.graph import Graph
from models.graphs.file import INSIDE_BYTES, FileRange, refer

_ALIGNMENT = 64


class NewConstants:
    """Constants beside those of a graph; ``file`` is open for writing and lies at ``path``.

    ``tensors``: as messages. ``streamed``: those that are weights, however small they are; ``resident``:
    those of them that stay in memory.
    """

    def __init__(self, graph: Graph, path: Path, file: BinaryIO) -> None:
        self.tensors: list[onnx.TensorProto] = []
        self.streamed: list[str] = []
        self.resident: list[str] = []
        self._path = path
        self._file = file
        self._names = {*graph.values, *graph.loose, *graph.constants, *graph.tensors}
        self._inside: dict[str, NDArray[Any]] = {}
        self._places: dict[str, tuple[int, np.dtype[Any], tuple[int, ...]]] = {}

    def fresh(self, name: str) -> str:
        """Return ``name``, or a longer one where that is taken; it is taken then."""
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name

    def add(
        self, name: str, array: NDArray[Any], streamed: bool = False, resident: bool = False
    ) -> str:
        """Add ``array``; return what it is called."""
        name = self.fresh(name)
        if streamed or resident:
            self.streamed.append(name)
        if resident:
            self.resident.append(name)
        if array.nbytes <= INSIDE_BYTES:
            self._inside[name] = np.array(array)
            self.tensors.append(numpy_helper.from_array(self._inside[name], name))
            return name
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        offset = self._file.tell()
        self._file.write(np.ascontiguousarray(array).data)
        self._places[name] = offset, array.dtype, array.shape
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape)
        refer(tensor, FileRange(self._path, offset, array.nbytes), self._path.name)
        self.tensors.append(tensor)
        return name

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all of them, large ones mapped; the file is closed by now."""
        mapped = {
            name: np.memmap(self._path, dtype, "r", offset, shape)
            for name, (offset, dtype, shape) in self._places.items()
        }
        return self._inside | mapped
