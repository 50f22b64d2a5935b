"""Operators that map a byte to a byte become a table of 256 bytes, which ONNX Runtime fills: the same bits.

An activation of a quantised network is several of them: a byte as a float, HardSigmoid, a byte again, and
its product with the byte that was there first. Where layers make the bytes, what they become is looked up
before they lie in memory (Cast and Gather behind each, cutting/quantised_tasks.py), so neither they nor
the floats do.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.graphs.graph import Edits, Graph, has_dtype
from models.graphs.writer import kind_of, serialised
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import Op
from models.network.node import Node
from models.network.operators.on_bytes import BYTE_TYPES
from models.network.operators.quantised import BYTES
from models.runtime.sessions import open_session, session_options

_IR_VERSION = 9

Constants = Mapping[str, NDArray[Any]]
#: By what they make: nodes, and at which place.
Makers = Mapping[str, tuple[int, Node]]


@dataclass(frozen=True)
class ByteRegion:
    """``nodes`` that make ``output`` of the bytes ``source`` alone, element by element."""

    nodes: Sequence[Node]
    source: str
    dtype: str
    output: str


def region_of(
    last: Node,
    makers: Makers,
    constants: Constants,
    begins: Callable[[str, Sequence[Node]], str | None],
) -> ByteRegion | None:
    """Return what ends with ``last`` and reads one tensor of bytes, the latest there is; None: nothing.

    ``begins``: returns the element type of a tensor that some nodes read, if a region may begin with it.
    """
    produces_bytes = (
        _has_scales(last.operator) and traits_of(last.operator).of is not Op.DequantizeLinear
    )
    if not produces_bytes or not _is_on_elements(last, constants):
        return None
    inside, read = [last], _read(last, constants)
    while True:
        if len(read) == 1:
            (source,) = read
            dtype = begins(source, inside)
            if dtype is not None:
                return ByteRegion(inside[::-1], source, dtype, last.output)
        latest = max(read, key=lambda name: makers[name][0] if name in makers else -1, default="")
        if latest not in makers or not _is_on_elements(makers[latest][1], constants):
            return None
        inside.append(makers[latest][1])
        read = read - {latest} | _read(inside[-1], constants)


def _read(node: Node, constants: Constants) -> set[str]:
    return {name for name in node.inputs if name and name not in constants}


def _is_on_elements(node: Node, constants: Constants) -> bool:
    """Return whether elements of ``node`` are made of those at the same place and of single constants."""
    arrays = [np.asarray(constants[name]) for name in node.inputs if name in constants]
    single = all(array.size == 1 and array.ndim <= 1 for array in arrays)
    return is_on_elements(node.operator) and single and len(node.outputs) == 1


def is_on_elements(operator: str) -> bool:
    """Return whether ``operator`` makes elements, numbers or bytes, of those in the same positions."""
    return traits_of(operator).function is not None or _has_scales(operator)


def reads_bytes(operator: str) -> bool:
    """Return whether ``operator`` makes elements of bytes in the same positions."""
    return _has_scales(operator) and traits_of(operator).of is not Op.QuantizeLinear


def _has_scales(operator: str) -> bool:
    traits = traits_of(operator)
    return traits.access == "elementwise" and traits.elements == "quantised"


def table_of(region: ByteRegion, constants: Constants, opsets: Mapping[str, int]) -> NDArray[Any]:
    """Return what ``region`` makes of each byte, in the order of bytes as unsigned numbers.

    ``opsets``: versions of operators by domain.
    """
    nodes = tuple(
        node.with_attributes(axis=0) if "axis" in node.attributes else node for node in region.nodes
    )
    names = {name for node in nodes for name in node.inputs if name in constants}
    graph = Graph(
        nodes=nodes,
        values={region.source: Array(dtype=region.dtype, shape=(BYTES,))},
        constants={name: constants[name] for name in sorted(names)},
        inputs=(region.source,),
        outputs=(region.output,),
        opsets=opsets,
        ir_version=_IR_VERSION,
    )
    session = open_session(serialised(graph), session_options(optimise=False))
    numbers = np.arange(BYTES, dtype=np.uint8).view(region.dtype)
    return np.asarray(session.run(None, {region.source: numbers})[0])


def look_up_results(graph: Graph, folder: Path, layers: Collection[str]) -> Graph:
    """Return ``graph`` with tables behind ``layers``.

    ``folder``: for a file with what is large. ``layers``: values behind which a table may stand. It does
    where nothing else reads them, and where what is made of them is put together, or in another order or
    shape, before it is looked up.
    """
    finder = _Finder(graph, layers)
    rewriter = _Rewriter(Edits(graph, folder), layers)
    for region in finder.regions():
        rewriter.look_up(region, finder.sources(region.source))
    return rewriter.edits.applied(rewriter.nodes())


class _Finder:
    """Finds regions whose bytes layers make."""

    def __init__(self, graph: Graph, layers: Collection[str]) -> None:
        self._graph = graph
        self._layers = layers
        # Of other types there are no tables.
        self._constants = {
            name: array for name, array in graph.constants.items() if has_dtype(array)
        }
        self._makers = {
            name: (index, node) for index, node in enumerate(graph.nodes) for name in node.made
        }

    def regions(self) -> Iterator[ByteRegion]:
        """Yield regions that no other node reads from; no two share a node."""
        taken = set[str]()
        for node in reversed(self._graph.nodes):
            if taken.isdisjoint(node.made):
                region = region_of(node, self._makers, self._constants, self._begins)
                if region is not None and self._is_closed(region):
                    taken.update(name for inner in region.nodes for name in inner.made)
                    yield region

    def sources(self, name: str) -> Iterator[str]:
        """Yield ``name``, and what it is put together of: back to values of layers."""
        yield name
        if name not in self._layers:
            for other in self._moved(name):
                yield from self.sources(other)

    def _begins(self, source: str, _: Sequence[Node]) -> str | None:
        """Return the dtype of ``source`` if layers make it."""
        return self._graph.values[source].dtype if self._is_of_layers(source) else None

    def _is_of_layers(self, name: str) -> bool:
        if name in self._layers:
            return name in self._graph.values and self._graph.values[name].dtype in BYTE_TYPES
        moved = self._moved(name)
        alone = len(set(moved)) == len(moved) and all(
            len(self._graph.readers.get(other, ())) == 1 and other not in self._graph.outputs
            for other in moved
        )
        return bool(moved) and alone and all(map(self._is_of_layers, moved))

    def _moved(self, name: str) -> list[str]:
        """Return what ``name`` is put together of; nothing where it is made otherwise."""
        _, node = self._makers.get(name, (0, None))
        if node is None or name not in self._graph.values:
            return []
        if node.operator == Op.Concat:
            return list(node.inputs)
        return [node.inputs[0]] if traits_of(node.operator).permutes else []

    def _is_closed(self, region: ByteRegion) -> bool:
        """Return whether no node outside reads what ``region`` is made of, or what is inside."""
        inside = {self._makers[node.output][0] for node in region.nodes}
        names = {region.source, *(node.output for node in region.nodes)} - {region.output}
        return not names.intersection(self._graph.outputs) and all(
            inside.issuperset(self._graph.readers.get(name, ())) for name in names
        )


class _Rewriter:
    """Puts tables into a graph."""

    def __init__(self, edits: Edits, layers: Collection[str]) -> None:
        self.edits = edits
        self._graph = edits.graph
        self._layers = layers
        self._behind: dict[str, list[Node]] = {}
        self._read_as: dict[str, str] = {}
        self._made_as: dict[str, str] = {}
        self._gone = set[str]()

    def look_up(self, region: ByteRegion, sources: Iterable[str]) -> None:
        """Put what ``region`` makes behind the layers among ``sources``, which its bytes come of."""
        graph = self._graph
        table = table_of(region, graph.constants, graph.opsets)
        self._gone.update(name for node in region.nodes for name in node.made)
        for name in sources:
            value = self.edits.array(name)
            if name not in self._layers:
                self.edits.values[name] = replace(value, dtype=table.dtype.name)
                if name == region.source:
                    self._made_as[name] = region.output
                continue
            result, called = region.output, region.nodes[-1].label
            if name != region.source:
                result = self._read_as[name] = self.edits.value(
                    f"{name}/found", table.dtype.name, value.shape
                )
                called = result
            numbers = self.edits.value(f"{name}/numbers", "int32", value.shape)
            # Each has its own, which is streamed with the weights of its layer.
            own = self.edits.constant(f"{name}/table", table, streamed=True)
            self._behind[name] = [
                graph.node(Op.Cast, [name], [numbers], to=kind_of(self.edits.array(numbers))),
                graph.node(Op.Gather, [own, numbers], [result], called, axis=0),
            ]

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes."""
        for node in self._graph.nodes:
            if not self._gone.isdisjoint(node.made):
                continue
            inputs = [self._read_as.get(name, name) for name in node.inputs]
            yield node.replaced(inputs, [self._made_as.get(name, name) for name in node.outputs])
            for name in node.made:
                yield from self._behind.get(name, ())
