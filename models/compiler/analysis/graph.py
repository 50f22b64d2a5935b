"""The optimised graph as the compiler sees it: nodes in execution order over named values."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from models.compiler.analysis.types import Loose
from models.graphs.nodes import made, node_of, reads, stable_order, versions_of
from models.graphs.parameters import quantised_weights
from models.network.fields import Array
from models.network.node import KnownTensors, Node, UnsuitedError
from models.network.operators.reading import Operator, read_operator
from models.packs.records.network import TurnedSoftmax, WindowProduct

NCHWC_DOMAIN = "com.microsoft.nchwc"
#: Domains whose operators take tensors that lie as their shapes say.
PLAIN_DOMAINS = ("", "com.microsoft")

# A constant this small, or an integer one up to the second limit, belongs to the operator (a shape, a
# clip bound, resize scales): it stays in the piece. Everything else is a weight and is streamed.
INLINE_BYTES = 64
INLINE_INTEGER_BYTES = 4096


def is_streamable(dtype: np.dtype[Any], n_bytes: int) -> bool:
    """Return whether a constant is a weight rather than a part of its operator."""
    return n_bytes > (INLINE_INTEGER_BYTES if dtype.kind in "iub" else INLINE_BYTES)


@dataclass(frozen=True)
class OpaqueRegion:
    """Nodes [first, end) that run as one resident piece, and why (models/compiler/analysis/opaque.py)."""

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
    ``dequantised``: as ``models/compiler/optimising/integers/floats.py`` returns them. ``window_products``:
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
        """Return what ``node`` computes; None: no family of operators knows it."""
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
