"""The network as the exporter sees it: nodes in order, constants, numbers as bytes."""

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import ModelError
from models.graphs.graph import Graph
from models.network.names import NCHWC, PLAIN_DOMAINS, Op
from models.network.node import NamedTensor, Node, UnsuitedError


class ExportError(ModelError):
    """The network cannot become C, or files cannot be written; the message names node and reason.

    ``labels``: what the message calls nodes, each in quotes.
    """

    def __init__(self, message: str, *labels: str) -> None:
        super().__init__(message)
        self.labels = labels


# How bytes stand for numbers.
#
# Numbers are unsigned bytes everywhere in C: of a signed one the highest bit is flipped, and so is that
# of its zero point. Sums are 32-bit integers; results are rounded to the nearest, half to even, and
# saturate.

FLIPS = {"uint8": 0, "int8": 128}


@dataclass(frozen=True)
class Scaled:
    """How bytes stand for numbers: ``scale`` times (byte - ``zero``); ``flip``: the bit of signed ones."""

    dtype: str
    scale: NDArray[np.float32]
    zero: int

    @property
    def flip(self) -> int:
        return FLIPS[self.dtype]

    @property
    def plain_zero(self) -> int:
        """The zero point as it is written."""
        return self.zero - self.flip

    @property
    def one(self) -> float:
        """The scale, where there is one for all."""
        return float(self.scale.reshape(-1)[0])


def scaled(scale: NDArray[Any], zeros: NDArray[Any]) -> Scaled:
    """Return what scales and zero points of bytes say."""
    zero, dtype = zeros.reshape(-1)[0], zeros.dtype.name
    if (zeros != zero).any():
        raise UnsuitedError("zero points that differ from channel to channel")
    return Scaled(dtype, scale, int(zero) + FLIPS[dtype])


# A network as the exporter sees it: nodes in the order in which they run, and what is constant.


@dataclass(frozen=True)
class Network:
    """``name``: of its file, for messages. ``constants`` by name. ``inputs``, ``outputs``: the caller's.

    ``quantised``: inputs and outputs that are bytes, and floats in the source.
    """

    name: str
    inputs: tuple[NamedTensor, ...]
    outputs: tuple[NamedTensor, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, NDArray[Any]]
    quantised: Mapping[str, Scaled] = field(default_factory=dict)

    def readers(self) -> Counter[str]:
        """Return how often each value is read, by nodes and by the caller."""
        read = Counter(name for node in self.nodes for name in node.inputs if name)
        read.update(port.name for port in self.outputs)
        return read

    def live(self) -> "Network":
        """Return the network without nodes whose results are not read."""
        wanted = {port.name for port in self.outputs}
        kept = []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                kept.append(node)
                wanted.update(node.inputs)
        return replace(self, nodes=tuple(kept[::-1]))


# From the compiler's graph.


def network_of(graph: Graph, name: str) -> Network:
    """Return ``graph``, which was optimised for C, as a network; errors call it ``name``.

    Inputs with a default have none in C.

    Raises:
        ExportError: a node has a graph inside, or an operator whose tensors do not lie as their shapes say.
    """
    read = {source for node in graph.nodes for source in node.reads}.union(graph.outputs)
    nodes = tuple(each for node in graph.nodes for each in _nodes(node, read, name))
    inputs, outputs = (
        tuple(
            NamedTensor(name=port, dtype=(array := graph.array(port)).dtype, shape=array.shape)
            for port in ports
        )
        for ports in (graph.inputs, graph.outputs)
    )
    return Network(name, inputs, outputs, nodes, graph.constants)


def _nodes(node: Node, read: Set[str], name: str) -> Iterator[Node]:
    """Yield ``node`` without outputs at its end that are not read; those of a Split are its parts."""
    inside = [key for key, value in node.attributes.items() if isinstance(value, Graph)]
    if inside or node.domain not in PLAIN_DOMAINS:
        why = f"a graph inside ({inside[0]})" if inside else f"the domain {node.domain}"
        if node.domain == NCHWC:
            why = "it is on blocks of channels; give the file that these were made of"
        raise ExportError(f"{name}: node {node.label!r} ({node.op_type}): {why}", node.label)
    if node.operator == Op.SkipLayerNormalization:
        yield from _summed(node)
    elif node.operator == Op.Split:
        yield node
    else:
        count = max(at for at, output in enumerate(node.outputs, 1) if output in read)
        yield replace(node, outputs=node.outputs[:count])


def _summed(node: Node) -> Iterator[Node]:
    """Yield a layer normalisation of a sum, and of a bias if there is one, as nodes of their own."""
    value, other, scale, shift, bias = (*node.inputs, "", "")[:5]
    outputs = (*node.outputs, "", "", "")
    whole = outputs[3] or f"{node.output}/sum"
    before = f"{whole}/0" if bias else whole
    yield Node(Op.Add, (value, other), (before,), {}, 14, node.label)
    if bias:
        yield Node(Op.Add, (before, bias), (whole,), {}, 14, node.label)
    attributes = {"axis": -1, "epsilon": node.attributes.get("epsilon", 1e-12)}
    inputs = (whole, scale, shift) if shift else (whole, scale)
    yield Node(Op.LayerNormalization, inputs, (node.output,), attributes, 17, node.label)
