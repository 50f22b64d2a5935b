"""What passes add to a graph that was read already: values and constants."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from models.compiler.analysis.graph import Graph
from models.graphs.file import INSIDE_BYTES, aligned
from models.graphs.nodes import fresh
from models.network.fields import Array


class Edits:
    """New ``values`` and constants beside those of ``graph``; large constants lie in ``folder``."""

    def __init__(self, graph: Graph, folder: Path) -> None:
        self.graph = graph
        self.values: dict[str, Array] = {}
        self._data = folder / "edits.data"
        self._constants: dict[str, NDArray[Any]] = {}
        self._streamed: set[str] = set()
        self._resident: set[str] = set()
        self._names = graph.names()

    def array(self, name: str) -> Array:
        """Return dtype and shape of a value or constant."""
        return self.values[name] if name in self.values else self.graph.array(name)

    def value(self, name: str, dtype: str, shape: Iterable[int]) -> str:
        """Add a value; return what it is called: ``name``, or longer where that is taken."""
        name = fresh(name, self._names)
        self.values[name] = Array(dtype=dtype, shape=tuple(shape))
        return name

    def constant(
        self, name: str, array: NDArray[Any], streamed: bool = False, resident: bool = False
    ) -> str:
        """Add a constant; return what it is called.

        ``streamed``: it is a weight however small it is; ``resident``: such a one, which stays in memory.
        """
        name = fresh(name, self._names)
        self._constants[name] = (
            np.array(array) if array.nbytes <= INSIDE_BYTES else self._in_file(array)
        )
        if streamed or resident:
            self._streamed.add(name)
        if resident:
            self._resident.add(name)
        return name

    def _in_file(self, array: NDArray[Any]) -> NDArray[Any]:
        with self._data.open("ab") as file:
            offset = aligned(file)
            file.write(np.ascontiguousarray(array).data)
        return np.memmap(self._data, array.dtype, "r", offset, array.shape)

    def applied(self, nodes: Iterable[onnx.NodeProto]) -> Graph:
        """Return the graph with them, and with ``nodes``."""
        return replace(
            self.graph,
            nodes=tuple(nodes),
            values={**self.graph.values, **self.values},
            constants={**self.graph.constants, **self._constants},
            streamed=self.graph.streamed | self._streamed,
            resident=self.graph.resident | self._resident,
        )
