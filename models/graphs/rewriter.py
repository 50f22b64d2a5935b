"""Passes over a graph: for each node what stands there instead, with all that is known around it.

A pass is a ``Rewriter`` whose ``replaced`` recognises a node and returns others; it is asked here for
names, constants, and the nodes that make and read a value.
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.graphs.graph import Edits, Graph, has_dtype
from models.graphs.ranges import range_of
from models.network.catalogue import read_operator
from models.network.fields import Array
from models.network.names import Op
from models.network.node import KnownTensors, Node, UnsuitedError
from models.network.operators.reading import Operator

_RESIZE_WITHOUT_REGION = 13


class Rewriter(ABC):
    """A pass over ``graph``. ``folder``: where large constants that it adds are to lie; None: in memory.

    ``node`` makes nodes, as ``Graph.node``. ``values``: of known size, those that the pass adds, too.
    ``constants``: by name, likewise.
    ``makers``, ``readers`` and ``uses`` are those of the graph before the pass. ``behind``: nodes that are
    to stand at once behind what makes a value, by its name. ``retyped``: values whose types are not known
    any more.
    """

    def __init__(self, graph: Graph, folder: Path | None = None) -> None:
        self.graph = graph
        self.node = graph.node
        self.values: dict[str, Array] = dict(graph.values)
        self.constants: dict[str, NDArray[Any]] = dict(graph.constants)
        self.opsets = graph.opsets
        self.outputs = frozenset(graph.outputs)
        self.makers: Mapping[str, Node] = {name: node for node in graph.nodes for name in node.made}
        self.behind: dict[str, Node] = {}
        self.retyped: set[str] = set()
        self._edits = Edits(graph, folder)

    @abstractmethod
    def replaced(self, node: Node) -> Iterable[Node] | None:
        """Return what stands where ``node`` did, in a valid order; None: it stays."""

    def run(self) -> Graph:
        """Return the graph with the nodes replaced, without those that no output needs any more."""
        nodes: list[Node] = []
        changed = False
        for node in self.graph.nodes:
            instead = self.replaced(node)
            changed |= instead is not None
            nodes.extend([node] if instead is None else instead)
        if changed:
            nodes = [each for node in nodes for each in self._with_behind(node)]
            self.graph = replace(self.graph, nodes=tuple(nodes))
            self.graph = replace(self.graph, nodes=self.graph.live())
        return self._with_values() if changed or self.retyped else self.graph

    def _with_values(self) -> Graph:
        graph = self.graph
        results = (name for node in graph.nodes for name in node.made)
        names = dict.fromkeys((*graph.inputs, *graph.outputs, *results))
        there = [name for name in names if name not in self.retyped]
        return replace(
            graph,
            values={name: self.values[name] for name in there if name in self.values},
            dynamic={name: graph.dynamic[name] for name in there if name in graph.dynamic},
            constants=self.constants,
        )

    def _with_behind(self, node: Node) -> list[Node]:
        return [node, *(self.behind[name] for name in node.made if name in self.behind)]

    @property
    def _known(self) -> KnownTensors:
        # An attribute would refer to the pass itself: until garbage is collected it would map constants
        # whose files are gone, and the disk would keep their bytes.
        return KnownTensors(self.array, self.numbers)

    @cached_property
    def readers(self) -> Mapping[str, list[Node]]:
        """By what they read, each once."""
        by_value: defaultdict[str, list[Node]] = defaultdict(list)
        for node in self.graph.nodes:
            for name in dict.fromkeys(node.reads):
                by_value[name].append(node)
        return by_value

    @cached_property
    def uses(self) -> Mapping[str, int]:
        """How often a value is read by what an output depends on; the caller of the model counts, too."""
        read = (name for node in self.graph.live() for name in node.reads)
        return Counter([*read, *self.outputs])

    def fresh(self, name: str) -> str:
        """Return ``name``, or a longer one where that is taken; it is taken then."""
        return self._edits.fresh(name)

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """Add a constant; return what it is called."""
        name = self.fresh(name)
        self.constants[name] = self._edits.stored(array)
        return name

    def reshape(self, name: str, result: str, shape: Iterable[int]) -> Node:
        """Return the node that makes ``result`` of ``name``."""
        given = self.constant(f"{result}/shape", np.array(tuple(shape), np.int64))
        return self.node(Op.Reshape, [name, given], [result])

    def resize(
        self, name: str, result: str, factors: Iterable[float], label: str, **attributes: str
    ) -> Node:
        """Return the node ``label`` that makes ``result`` of ``name``, larger by ``factors``.

        Before opset 13 no input of Resize may be left out, not even the region that only tf_crop_and_resize
        reads.
        """
        scales = self.constant(f"{result}/scales", np.array(tuple(factors), np.float32))
        region = ""
        if self.opsets.get("", 0) < _RESIZE_WITHOUT_REGION:
            region = self.constant(f"{result}/region", np.zeros(0, np.float32))
        return self.node(Op.Resize, [name, region, scales], [result], label, **attributes)

    def array(self, name: str) -> Array | None:
        """Return dtype and shape of a value or constant."""
        constant = self.constants.get(name)
        if constant is None:
            return self.values.get(name)
        return Array(dtype=constant.dtype.name, shape=constant.shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a value; (): it is not known, or none."""
        return self.values[name].shape if name in self.values else ()

    def numbers(self, name: str) -> NDArray[Any] | None:
        """Return a constant that is not so large that it lies in a file, if NumPy has its type."""
        constant = self.constants.get(name)
        if constant is None or not has_dtype(constant) or range_of(constant) is not None:
            return None
        return constant

    def is_single(self, name: str) -> bool:
        """Return whether ``name`` is a constant that is one number."""
        return name in self.constants and self.constants[name].size == 1

    def operator(self, node: Node) -> Operator | None:
        """Return what ``node`` computes; None: no family of operators has it."""
        try:
            return read_operator(node, self._known)
        except UnsuitedError:
            return None
