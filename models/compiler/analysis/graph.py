"""The optimised graph as the compiler sees it: nodes in execution order over named values."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.graphs.file import INSIDE_BYTES, aligned
from models.graphs.nodes import fresh, made, new_node, node_of, reads, stable_order, versions_of
from models.graphs.traits import quantised_weights
from models.network.catalogue import read_operator
from models.network.fields import DTYPES, STRINGS, UNKNOWN, Array
from models.network.names import Op
from models.network.node import KnownTensors, Node, UnsuitedError
from models.network.operators.reading import Operator
from models.packs.records.pieces import TurnedSoftmax, WindowProduct

# What ONNX Runtime says of the values of a graph: which have a place in the arena, which cannot.

_ELEMENT_TYPES = {"float": "float32", "double": "float64", "string": STRINGS}

OpenModel = Callable[[onnx.ModelProto], ort.InferenceSession]


@dataclass(frozen=True)
class Loose:
    """A value without a place: why, and what it is where NumPy has such arrays."""

    reason: str
    array: Array | None


@dataclass(frozen=True)
class ValueTypes:
    """``placed``: values of known size. ``loose``: all others."""

    placed: dict[str, Array]
    loose: dict[str, Loose]


def value_types(probe: onnx.ModelProto, open_model: OpenModel) -> ValueTypes:
    """Return the types of inputs and outputs of ``probe``, whose outputs are all its values.

    ``open_model`` may be called twice: ONNX Runtime gives an unknown rank and a scalar the same empty
    shape, and only the shape of its shape distinguishes them.
    """
    session = open_model(probe)
    types = {
        port.name: typed(port.name, port.type, port.shape)
        for port in (*session.get_inputs(), *session.get_outputs())
    }
    # The inputs' ranks are declared; those of the others are ONNX Runtime's.
    computed = {port.name for port in session.get_outputs()} - {
        p.name for p in session.get_inputs()
    }
    del session
    scalars = [
        name for name in computed if isinstance(types[name], Array) and not _shape(types[name])
    ]
    for name in _unknown_ranks(probe, sorted(scalars), open_model):
        types[name] = Loose(f"value {name!r} has a rank that is known only at run time", None)
    return ValueTypes(
        {name: item for name, item in types.items() if isinstance(item, Array)},
        {name: item for name, item in types.items() if isinstance(item, Loose)},
    )


def _shape(item: Array | Loose) -> tuple[int, ...]:
    return item.shape if isinstance(item, Array) else (UNKNOWN,)


def typed(name: str, type_name: str, shape: list[int | str | None]) -> Array | Loose:
    """Return what a value is, from ONNX Runtime's words for its type and its dimensions."""
    element = _element(type_name)
    if element is None:
        return Loose(f"value {name!r} has type {type_name}", None)
    # ONNX Runtime writes -1 for a dimension without a name.
    dims = tuple(dim if isinstance(dim, int) and dim >= 0 else UNKNOWN for dim in shape)
    array = Array(dtype=element, shape=dims)
    if element == STRINGS:
        return Loose(f"value {name!r} has type {type_name}", array)
    if UNKNOWN in dims:
        shown = "[" + ", ".join("?" if dim == UNKNOWN else str(dim) for dim in dims) + "]"
        return Loose(f"value {name!r} has a shape that is known only at run time: {shown}", array)
    return array


def _element(type_name: str) -> str | None:
    """Return the dtype of a tensor type such as "tensor(float)", None where NumPy has none."""
    if not type_name.startswith("tensor("):
        return None
    element = type_name.removeprefix("tensor(").removesuffix(")")
    if element in _ELEMENT_TYPES:
        return _ELEMENT_TYPES[element]
    try:
        number = TensorProto.DataType.Value(element.upper())
        name = np.dtype(helper.tensor_dtype_to_np_dtype(number)).name
    except (KeyError, ValueError, TypeError):
        return None
    return name if name in DTYPES else None


def _unknown_ranks(
    probe: onnx.ModelProto, names: Iterable[str], open_model: OpenModel
) -> list[str]:
    names = list(names)
    if not names:
        return []
    asked = onnx.ModelProto()
    asked.CopyFrom(probe)
    taken = {value.name for value in (*probe.graph.input, *probe.graph.output)}
    ranks = {name: fresh(f"{name}/rank", taken) for name in names}
    for name, rank in ranks.items():
        asked.graph.node.append(new_node(Op.Shape, [name], [rank]))
        asked.graph.output.add().name = rank
    session = open_model(asked)
    known = {port.name for port in session.get_outputs() if port.shape == [0]}
    return [name for name in names if ranks[name] not in known]


# A constant this small, or an integer one up to the second limit, belongs to the operator (a shape, a
# clip bound, resize scales): it stays in the piece. Everything else is a weight and is streamed.
INLINE_BYTES = 64
INLINE_INTEGER_BYTES = 4096


def is_streamable(dtype: np.dtype[Any], n_bytes: int) -> bool:
    """Return whether a constant is a weight rather than a part of its operator."""
    return n_bytes > (INLINE_INTEGER_BYTES if dtype.kind in "iub" else INLINE_BYTES)


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
    """A validated, topologically sorted graph.

    ``values`` has every activation (graph inputs and node outputs) of known size, ``loose`` the others;
    ``constants`` every initializer, ``tensors`` those of element types that NumPy does not have. The four
    share no name. Loose values and ``tensors`` are touched only inside ``regions``. ``streamed``: constants
    that are weights however small they are; ``resident``: those of them that stay in memory.
    ``dequantised``: as ``models/compiler/optimising/integer_weights.py`` returns them. ``window_products``:
    convolutions that are products on windows now. ``turned_softmaxes``, ``used_channels``: as in a
    manifest.
    """

    nodes: tuple[onnx.NodeProto, ...]
    values: Mapping[str, Array]
    constants: Mapping[str, NDArray[Any]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opsets: tuple[onnx.OperatorSetIdProto, ...]
    loose: Mapping[str, Loose] = field(default_factory=dict)
    tensors: Mapping[str, TensorProto] = field(default_factory=dict)
    regions: tuple[OpaqueRegion, ...] = ()
    ir_version: int = 0
    streamed: frozenset[str] = frozenset()
    resident: frozenset[str] = frozenset()
    dequantised: Mapping[str, str] = field(default_factory=dict)
    window_products: tuple[WindowProduct, ...] = ()
    turned_softmaxes: tuple[TurnedSoftmax, ...] = ()
    used_channels: Mapping[str, int] = field(default_factory=dict)

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
        if constant is None:
            return False
        return name in self.streamed or is_streamable(constant.dtype, constant.nbytes)

    def weight_bytes(self, node: onnx.NodeProto) -> int:
        """Return the bytes of the weights of ``node``; small quantised ones stay in the piece."""
        names = {name for name in reads(node) if self.is_weight(name)}
        names.update(name for name in quantised_weights(node) if name in self.constants)
        return sum(self.constants[name].nbytes for name in names)

    def names(self) -> set[str]:
        """Return the names of all values and constants."""
        return {*self.values, *self.loose, *self.constants, *self.tensors}

    def array(self, name: str) -> Array:
        """Return dtype and shape of a value or constant."""
        if name in self.values:
            return self.values[name]
        if (loose := self.loose.get(name)) is not None:
            assert loose.array is not None, name  # a port's type was checked (port_types)
            return loose.array
        constant = self.constants[name]
        return Array(dtype=np.dtype(constant.dtype).name, shape=constant.shape)

    def constants_of(self, nodes: Iterable[onnx.NodeProto]) -> list[str]:
        """Return the names of the constants that ``nodes`` read."""
        read = dict.fromkeys(name for node in nodes for name in reads(node))
        return [name for name in read if name in self.constants or name in self.tensors]

    def tensor(self, name: str) -> TensorProto:
        """Return a constant as a message that has its numbers inside."""
        if name in self.tensors:
            return self.tensors[name]
        return numpy_helper.from_array(np.asarray(self.constants[name]), name)

    def record(self, node: onnx.NodeProto) -> Node:
        """Return ``node`` as a plain record."""
        return node_of(node, self.versions)

    def operator(self, node: onnx.NodeProto) -> Operator | None:
        """Return what ``node`` computes; None: no family of operators has it."""
        try:
            return read_operator(self.record(node), self.known)
        except UnsuitedError:
            return None

    @functools.cached_property
    def versions(self) -> Mapping[str, int]:
        """Of the operators of each domain."""
        return versions_of(self.opsets)

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
            for name in dict.fromkeys(reads(node)):
                readers.setdefault(name, []).append(index)
        return readers

    @functools.cached_property
    def makers(self) -> Mapping[str, int]:
        """For each value the index of the node that makes it; nothing makes inputs."""
        return {name: index for index, node in enumerate(self.nodes) for name in made(node)}

    def passed(self) -> Iterator[tuple[int, int, str]]:
        """Yield the maker, a reader and the name of each value that passes between nodes."""
        for index, node in enumerate(self.nodes):
            for name in dict.fromkeys(reads(node)):
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


def members_of(groups: Sequence[int]) -> dict[int, list[int]]:
    """Return the nodes of each group, ascending; ``groups[i]`` is the group of node i."""
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    return members


# What a piece is made of: nodes of the graph, and the slices of values and constants that they use.


@dataclass(frozen=True)
class Slice:
    """Bytes [offset, offset + size of shape) of the value or constant ``name``."""

    name: str
    shape: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class CutPiece:
    """Nodes [first_node, end_node) of the graph, or one chunk of a single node.

    ``inputs`` and ``outputs`` are keyed by the names that the nodes use. ``region`` makes it a resident
    piece, whose weights are inside it (models/compiler/cutting/piece_models.py).
    """

    first_node: int
    end_node: int
    inputs: dict[str, Slice]
    outputs: dict[str, Slice]
    weights: tuple[Slice, ...]
    shared_weights: tuple[Slice, ...] = ()
    region: OpaqueRegion | None = None


@dataclass(frozen=True)
class CutAlternative:
    """``pieces`` that do what the pieces [first, end) do, the chunks of one layer, in fewer kernels."""

    first: int
    end: int
    pieces: tuple[CutPiece, ...]


# What passes add to a graph that was read already: values and constants.


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
