"""Constants that the compiler makes itself: small ones in their messages, large ones in a file."""

from pathlib import Path
from typing import Any, BinaryIO

import onnx
from numpy.typing import NDArray

from models.compiler.analysis.graph import Graph
from models.graphs.file import numbers_of, tensor_in
from models.graphs.rewriting import fresh


class NewConstants:
    """Constants beside those of a graph; ``file`` is open for writing.

    ``tensors``: as messages. ``streamed``: those that are weights, however small they are; ``resident``:
    those of them that stay in memory.
    """

    def __init__(self, graph: Graph, file: BinaryIO) -> None:
        self.tensors: list[onnx.TensorProto] = []
        self.streamed: list[str] = []
        self.resident: list[str] = []
        self._file = file
        self._names = graph.names()

    def fresh(self, name: str) -> str:
        """Return ``name``, or a longer one where that is taken; it is taken then."""
        return fresh(name, self._names)

    def add(
        self, name: str, array: NDArray[Any], streamed: bool = False, resident: bool = False
    ) -> str:
        """Add ``array``; return what it is called."""
        name = self.fresh(name)
        if streamed or resident:
            self.streamed.append(name)
        if resident:
            self.resident.append(name)
        self.tensors.append(tensor_in(self._file, name, array))
        return name

    def arrays(self, folder: Path) -> dict[str, NDArray[Any]]:
        """Return all of them, large ones mapped; the file, in ``folder``, is closed by now."""
        return {tensor.name: numbers_of(tensor, folder) for tensor in self.tensors}
