"""A network as a graph of records: nodes in execution order over named values and constants.

It is what all passes read and write, from the file to the pieces: reader.py makes it of an ONNX message,
writer.py makes one of it. Nothing in it changes; a pass returns another one.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.graphs.order import fresh, stable_order
from models.graphs.ranges import (
    INSIDE_BYTES,
    FileRange,
    aligned,
    appended,
    copy_range,
    mapped,
    range_of,
)
from models.network.catalogue import read_operator, traits_of
from models.network.fields import DTYPES, Array
from models.network.names import domain_of
from models.network.node import KnownTensors, Node, UnsuitedError
from models.network.operators.reading import Operator
from models.network.records import Role

# A constant this small, or an integer one up to the second limit, belongs to the operator (a shape, a
# clip bound, resize scales): it stays in the piece. Everything else is a weight and is streamed.
INLINE_BYTES = 64
INLINE_INTEGER_BYTES = 4096


def is_streamable(dtype: np.dtype[Any], n_bytes: int) -> bool:
    """Return whether a constant is a weight rather than a part of its operator."""
    return n_bytes > (INLINE_INTEGER_BYTES if dtype.kind in "iub" else INLINE_BYTES)


def has_dtype(array: NDArray[Any]) -> bool:
    """Return whether NumPy itself has the element type of ``array``: it has neither bfloat16 nor texts."""
    return _name_of(array.dtype) in DTYPES


@functools.cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """Return what NumPy calls ``dtype``; it puts the name together each time, which takes microseconds."""
    return dtype.name


#: A dimension that is not known, in the name of a type.
UNKNOWN_WORD = "?"
ListKind = Literal["floats", "ints", "strings"]


class EmptyList(list[Any]):
    """An attribute that is an empty list: of what kind."""

    def __init__(self, kind: ListKind) -> None:
        super().__init__()
        self.kind = kind


class TypeName(str):
    """An attribute that is a type, in words as ``DynamicValue.type_name`` is."""

    __slots__ = ()


@dataclass(frozen=True)
class DynamicValue:
    """A value without a place: why, and what it is where NumPy has such arrays.

    ``type_name``: in ONNX's words, with its shape if that is known: "seq(tensor(float)[1,?])"; "": it is
    unknown.
    """

    reason: str
    array: Array | None
    type_name: str = ""


@dataclass(frozen=True)
class ValueTypes:
    """``placed``: values of known size. ``dynamic``: all others."""

    placed: Mapping[str, Array]
    dynamic: Mapping[str, DynamicValue]


@dataclass(frozen=True)
class OpaqueRegion:
    """Nodes [first, end) that run as one resident piece, and why (node_groups.py)."""

    first: int
    end: int
    reasons: tuple[str, ...]

    def __contains__(self, index: int) -> bool:
        return self.first <= index < self.end


@dataclass(frozen=True)
class Graph:
    """A topologically sorted graph.

    Attributes:
        nodes: in execution order.
        values: inputs and results of nodes whose size is known; before types are inferred, the inputs and
            outputs that say theirs.
        constants: by name; large ones are mapped ranges of files. Only regions read those whose element
            type NumPy does not have (``has_dtype``): bfloat16 and others of ml_dtypes, and texts as bytes.
        inputs, outputs: names. An input that is a constant, too, has that as its default.
        opsets: versions by domain, ONNX's own is "".
        dynamic: the values without a known size. Only regions read and write them.
        regions: nodes that run together, resident.
        ir_version: of the file that it was read from.
        streamed: constants that are weights however small they are.
        resident: those of them that stay in memory.
        dequantised: as models/compiler/optimising/integer_weights.py returns them.

    A value has one maker or none, and no other name that a constant has. A body of If, Loop or Scan is a
    graph, too, in an attribute: it reads values of the graphs around it.
    """

    nodes: tuple[Node, ...]
    values: Mapping[str, Array]
    constants: Mapping[str, NDArray[Any]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opsets: Mapping[str, int]
    dynamic: Mapping[str, DynamicValue] = field(default_factory=dict)
    regions: tuple[OpaqueRegion, ...] = ()
    ir_version: int = 0
    streamed: frozenset[str] = frozenset()
    resident: frozenset[str] = frozenset()
    dequantised: Mapping[str, str] = field(default_factory=dict)

    def region(self, index: int) -> OpaqueRegion | None:
        """Return the region of node ``index``."""
        return self._region_of.get(index)

    @functools.cached_property
    def _region_of(self) -> dict[int, OpaqueRegion]:
        return {
            index: region for region in self.regions for index in range(region.first, region.end)
        }

    def is_weight(self, name: str) -> bool:
        """Return whether ``name`` is a constant that lives in weights.bin."""
        constant = self.constants.get(name)
        if constant is None or not has_dtype(constant):
            return False
        return name in self.streamed or is_streamable(constant.dtype, constant.nbytes)

    def weight_bytes(self, node: Node) -> int:
        """Return the bytes of the weights of ``node``; small quantised ones stay in the piece."""
        return sum(self.constants[name].nbytes for name in self._weights_of(node))

    @property
    def all_weight_bytes(self) -> int:
        """The bytes of the weights of all nodes; what several of them read counts once."""
        names = {name for node in self.nodes for name in self._weights_of(node)}
        return sum(self.constants[name].nbytes for name in names)

    def _weights_of(self, node: Node) -> set[str]:
        names = {name for name in node.reads if self.is_weight(name)}
        names.update(name for name in quantised_weights(node) if name in self.constants)
        return names

    @functools.cached_property
    def names(self) -> frozenset[str]:
        """All names that are taken: of values, constants and nodes."""
        named = (name for node in self.nodes for name in (node.name, *node.made, *node.reads))
        ports = (*self.inputs, *self.outputs)
        return frozenset((*self.values, *self.dynamic, *self.constants, *ports, *named))

    def array(self, name: str) -> Array:
        """Return dtype and shape of a value or constant."""
        if name in self.values:
            return self.values[name]
        if (dynamic := self.dynamic.get(name)) is not None:
            assert dynamic.array is not None, name  # a port's type was checked (check_ports)
            return dynamic.array
        constant = self.constants[name]
        return Array(dtype=_name_of(constant.dtype), shape=constant.shape)

    def constants_of(self, nodes: Iterable[Node]) -> list[str]:
        """Return the names of the constants that ``nodes`` read."""
        read = dict.fromkeys(name for node in nodes for name in node.reads)
        return [name for name in read if name in self.constants]

    def node(
        self,
        operator: str,
        inputs: Iterable[str],
        outputs: Iterable[str],
        name: str = "",
        **attributes: Any,
    ) -> Node:
        """Return a node of ``operator`` in the version that this graph has."""
        opset = self.opsets.get(operator.rpartition(".")[0], 1)
        return Node(operator, tuple(inputs), tuple(outputs), attributes, opset, name)

    def operator(self, node: Node) -> Operator | None:
        """Return what ``node`` computes; None: no family of operators has it."""
        try:
            return read_operator(node, self.known)
        except UnsuitedError:
            return None

    @functools.cached_property
    def known(self) -> KnownTensors:
        there = {*self.values, *self.constants}
        return KnownTensors(
            lambda name: self.array(name) if name in there else None, self.constants.get
        )

    @functools.cached_property
    def readers(self) -> Mapping[str, list[int]]:
        """For each value and constant the indices of the nodes that read it, ascending."""
        readers: dict[str, list[int]] = {}
        for index, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.reads):
                readers.setdefault(name, []).append(index)
        return readers

    @functools.cached_property
    def makers(self) -> Mapping[str, int]:
        """For each value the index of the node that makes it; nothing makes inputs."""
        return {name: index for index, node in enumerate(self.nodes) for name in node.made}

    @property
    def captured(self) -> tuple[str, ...]:
        """What a body reads of the graphs around it."""
        own, captured = {*self.inputs, *self.constants}, dict[str, None]()
        for node in self.nodes:
            captured |= dict.fromkeys(name for name in node.reads if name not in own)
            own.update(node.outputs)
        captured |= dict.fromkeys(name for name in self.outputs if name not in own)
        return tuple(captured)

    def passed(self) -> Iterator[tuple[int, int, str]]:
        """Yield the maker, a reader and the name of each value that passes between nodes."""
        for index, node in enumerate(self.nodes):
            for name in dict.fromkeys(node.reads):
                if name in self.makers:
                    yield self.makers[name], index, name

    def needs(self, groups: Sequence[int]) -> dict[int, set[int]]:
        """Return, for each group, the groups that it needs; ``groups[i]`` is the group of node i."""
        needs: dict[int, set[int]] = {group: set() for group in groups}
        for maker, reader, _ in self.passed():
            if groups[maker] != groups[reader]:
                needs[groups[reader]].add(groups[maker])
        return needs

    def order(self, groups: Sequence[int]) -> list[int]:
        """Return the nodes in an order that keeps groups together and otherwise changes little."""
        members = members_of(groups)
        return [index for group in stable_order(self.needs(groups)) for index in members[group]]

    def reordered(self, order: Sequence[int]) -> "Graph":
        """Return the same with its nodes in another order, which keeps the nodes of a region together."""
        place = {index: position for position, index in enumerate(order)}
        regions = (
            replace(region, first=place[region.first], end=place[region.end - 1] + 1)
            for region in self.regions
        )
        return replace(
            self,
            nodes=tuple(self.nodes[index] for index in order),
            regions=tuple(sorted(regions, key=lambda region: region.first)),
        )

    def live(self) -> tuple[Node, ...]:
        """Return the nodes that an output depends on, in their order: ONNX Runtime keeps others, too."""
        needed, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.made):
                kept.append(node)
                needed.update(node.reads)
        return tuple(reversed(kept))

    def without_dead(self) -> "Graph":
        """Return it with the nodes that an output depends on, and the constants that these read."""
        nodes = self.live()
        read = {*self.inputs, *self.outputs, *(name for node in nodes for name in node.reads)}
        constants = {name: array for name, array in self.constants.items() if name in read}
        return replace(self, nodes=nodes, constants=constants)

    def with_types(self, types: ValueTypes) -> "Graph":
        """Return it with the types of its values."""
        return replace(self, values=types.placed, dynamic=types.dynamic)


def part_of(
    graph: Graph, nodes: Iterable[Node], inputs: Iterable[str], outputs: Iterable[str]
) -> Graph:
    """Return ``nodes`` of ``graph`` with the constants that they need as a graph of their own."""
    nodes, outputs = tuple(nodes), tuple(outputs)
    names = [*graph.constants_of(nodes), *(name for name in outputs if name in graph.constants)]
    return replace(
        graph,
        nodes=nodes,
        constants={name: graph.constants[name] for name in names},
        inputs=tuple(inputs),
        outputs=outputs,
    )


def with_files(graph: Graph, data: Path) -> Graph:
    """Return ``graph`` with the constants that it needs; large ones in no file go to ``data``, anew."""
    data.unlink(missing_ok=True)
    graph = part_of(graph, graph.nodes, graph.inputs, graph.outputs)
    constants = {
        name: array
        if array.nbytes <= INSIDE_BYTES or not has_dtype(array) or range_of(array)
        else appended(data, array)
        for name, array in graph.constants.items()
    }
    return replace(graph, constants=constants)


def with_weights_in(graph: Graph, data: Path) -> Graph:
    """Return ``graph`` with copies of all large constants in the file ``data``, which is new."""
    ranges: dict[str, FileRange] = {}
    with data.open("wb") as file:
        for name, array in graph.constants.items():
            held = range_of(array)
            if array.nbytes > INSIDE_BYTES and (held is not None or has_dtype(array)):
                ranges[name] = FileRange(data, aligned(file), array.nbytes)
                if held is None:
                    file.write(np.ascontiguousarray(array).data)
                else:
                    copy_range(held, file)
    constants = {
        name: mapped(ranges[name], array.dtype, array.shape) if name in ranges else array
        for name, array in graph.constants.items()
    }
    return replace(graph, constants=constants)


def domains(graph: Graph) -> set[str]:
    """Return the domains of the operators of ``graph`` and of the bodies inside."""
    return {domain_of(node.domain) for each in all_graphs(graph) for node in each.nodes}


def all_graphs(graph: Graph) -> Iterator[Graph]:
    """Yield ``graph`` and those inside its nodes."""
    yield graph
    for node in graph.nodes:
        for body in node.bodies:
            assert isinstance(body, Graph)
            yield from all_graphs(body)


def inputs_of(node: Node, *roles: Role) -> list[str]:
    """Return the inputs of ``node`` that have one of ``roles``."""
    positions = traits_of(node.operator).positions(len(node.inputs), *roles)
    return [node.inputs[position] for position in positions if node.inputs[position]]


def is_quantised(node: Node) -> bool:
    """Return whether ``node`` computes with quantised numbers."""
    return traits_of(node.operator).elements == "quantised"


def quantised_weights(node: Node) -> list[str]:
    """Return the inputs of ``node`` that are weights as integers, if they are constants."""
    return inputs_of(node, "data", "weight", "bias") if is_quantised(node) else []


def members_of(groups: Sequence[int]) -> dict[int, list[int]]:
    """Return the nodes of each group, ascending; ``groups[i]`` is the group of node i."""
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    return members


class Edits:
    """What a pass adds to ``graph``: values and constants; large ones lie in a file in ``folder``."""

    def __init__(self, graph: Graph, folder: Path | None = None) -> None:
        self.graph = graph
        self.values: dict[str, Array] = {}
        self.constants: dict[str, NDArray[Any]] = {}
        self._folder = folder
        self._streamed: set[str] = set()
        self._resident: set[str] = set()
        self._names = set(graph.names)

    def fresh(self, name: str) -> str:
        """Return ``name``, or a longer one where that is taken; it is taken then."""
        return fresh(name, self._names)

    def array(self, name: str) -> Array:
        """Return dtype and shape of a value or constant."""
        return self.values[name] if name in self.values else self.graph.array(name)

    def value(self, name: str, dtype: str, shape: Iterable[int]) -> str:
        """Add a value; return what it is called: ``name``, or longer where that is taken."""
        name = self.fresh(name)
        self.values[name] = Array(dtype=dtype, shape=tuple(shape))
        return name

    def constant(
        self, name: str, array: NDArray[Any], streamed: bool = False, resident: bool = False
    ) -> str:
        """Add a constant; return what it is called.

        ``streamed``: it is a weight however small it is; ``resident``: such a one, which stays in memory.
        """
        name = self.fresh(name)
        self.constants[name] = self.stored(array)
        if streamed or resident:
            self._streamed.add(name)
        if resident:
            self._resident.add(name)
        return name

    def stored(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return a copy of ``array``, mapped where it is large and there is a folder."""
        if self._folder is None or array.nbytes <= INSIDE_BYTES:
            return np.array(array)
        return appended(self._folder / "edits.data", array)

    def applied(self, nodes: Iterable[Node]) -> Graph:
        """Return the graph with them, and with ``nodes``."""
        return replace(
            self.graph,
            nodes=tuple(nodes),
            values={**self.graph.values, **self.values},
            constants={**self.graph.constants, **self.constants},
            streamed=self.graph.streamed | self._streamed,
            resident=self.graph.resident | self._resident,
        )
