"""Several serialised pieces as one graph, which one session runs.

Invariant: the graph has the pieces' nodes in their order, and nothing connects those of different pieces:
all inputs and outputs of all pieces are its own. What one piece hands to the next lies where the caller
binds both, so ONNX Runtime allocates no more than for the pieces one by one, and whatever lies at the same
place is right as long as nodes run in the order of the graph. ``models/runtime/sessions.py`` sees to that
(``open_joined``): of the nodes that could run, ONNX Runtime then takes the first one, unless it computes
sizes. A node that ONNX Runtime adds when it loads the graph (a conversion, the body of a function, a copy)
is behind all others. So each graph is compared with what was loaded of it (``runs_in_order``); pieces whose
order is another one run one by one.

``can_join`` says before which pieces are tried: those whose kernels the table says can be
(models/runtime/kernels.py). One that it says wrongly costs time, for all that would be joined with it.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from models.network.names import named
from models.runtime.kernels import KERNELS, kernel_of
from models.runtime.wire import (
    GraphField,
    ModelField,
    NodeField,
    OpsetField,
    TensorField,
    ValueField,
    WireError,
    WireField,
    contents,
    field,
    fields,
    head,
)

_READ = frozenset(GraphField)

_RUN_FIRST = frozenset(
    field(NodeField.OP_TYPE, name) for name, kernel in KERNELS.items() if kernel.launch == "first"
)
#: For these types ONNX Runtime adds no conversions: its kernels take them.
JOINED_TYPES = frozenset(("float32", "int8", "int32", "uint8"))


class JoinError(Exception):
    """These pieces cannot be one graph."""


def can_join(graph: bytes) -> bool:
    """Return whether a serialised piece may be one of several, if its values have ``JOINED_TYPES``."""
    try:
        parts = list(fields(_body(graph)))
        return {part.number for part in parts} <= _READ and all(
            _is_kernel(part.data) for part in parts if part.number == GraphField.NODE
        )
    except (JoinError, WireError):
        return False


def is_one(graph: bytes) -> bool:
    """Return whether a serialised piece has a single node: what that allocates is free when it has run."""
    return sum(part.number == GraphField.NODE for part in fields(_body(graph))) == 1


def join_graphs(graphs: Sequence[bytes]) -> bytes:
    """Return one serialised graph that does what ``graphs`` do; all of them can be joined.

    Its inputs are those of the first piece, of the second, and so on; its outputs likewise.

    Raises:
        JoinError: they were written for different versions of ONNX. WireError: one is no graph.
    """
    prefixes = [str(position).encode() for position in range(len(graphs))]
    parts = [_part(graph, len(prefix)) for graph, prefix in zip(graphs, prefixes, strict=True)]
    nodes = (prefix.join(part.texts) for prefix, part in zip(prefixes, parts, strict=True))
    body = field(GraphField.NAME, "joined") + b"".join(nodes)
    return _header(parts) + field(ModelField.GRAPH, body)


def runs_in_order(graph: bytes, loaded: bytes) -> bool:
    """Return whether the nodes of ``graph`` run in its order, where ONNX Runtime made ``loaded`` of it.

    That is so if it has these nodes and no others; in which order ``loaded`` has them says nothing.

    Raises:
        JoinError: one is no model. WireError: as ``fields``.
    """
    written, run = (sorted(_nodes(model)) for model in (graph, loaded))
    return written == run and _RUN_FIRST.isdisjoint(operator for operator, *_ in run)


#: What tells a node from others and stays as it is in a graph that is loaded.
_IDENTITY_FIELDS = (NodeField.OP_TYPE, NodeField.DOMAIN, NodeField.INPUT, NodeField.OUTPUT)


def _nodes(model: bytes) -> Iterator[tuple[bytes, ...]]:
    """Yield of each node its operator, domain, inputs and outputs, each as one text."""
    for entry in fields(_body(model)):
        if entry.number == GraphField.NODE:
            texts = dict.fromkeys(_IDENTITY_FIELDS, b"")
            for item in fields(entry.data):
                if item.number in texts and item.data:  # ONNX Runtime writes an empty domain, too
                    texts[NodeField(item.number)] += item.whole
            yield tuple(texts.values())


class _Part(NamedTuple):
    """A piece as one of several: the versions it was written for, by domain, and what is in its graph.

    ``texts``: what stands around the names of values, so that a prefix of them belongs between each two.
    """

    version: int
    operators: dict[bytes, bytes]
    texts: tuple[bytes, ...]


# A network has few graphs, each in many launches: YOLOv4 at 608 px 61, a few kilobytes each, in 899 places.
@functools.lru_cache(maxsize=128)
def _part(graph: bytes, length: int) -> _Part:
    """Return ``graph`` with room for a prefix of ``length`` bytes before the name of each value."""
    version, operators = 0, {}
    for part in fields(graph):
        if part.number == ModelField.IR_VERSION:
            version = part.value
        elif part.number == ModelField.OPSET_IMPORT:
            operators[b"".join(contents(part.data, OpsetField.DOMAIN))] = part.whole
    texts = [b""]
    for part in fields(_body(graph)):
        if part.number != GraphField.NAME:
            first, *others = _around_names(part, length)
            texts[-1] += first
            texts += others
    return _Part(version, operators, tuple(texts))


def _around_names(part: WireField, length: int) -> list[bytes]:
    """Return what stands around the names in a part of a graph, each of which is ``length`` longer."""
    names: tuple[int, ...]
    if part.number == GraphField.NODE:
        names = (NodeField.INPUT, NodeField.OUTPUT)
    else:
        names = (TensorField.NAME,) if part.number == GraphField.INITIALIZER else (ValueField.NAME,)
    texts = [b""]
    for item in fields(part.data):
        if item.number in names and item.data:  # an input that is left out has no name
            texts[-1] += head(item.number, length + len(item.data))
            texts.append(item.data)
        elif part.number != GraphField.NODE or item.number != NodeField.NAME:
            texts[-1] += item.whole
    n_bytes = sum(map(len, texts)) + length * (len(texts) - 1)
    return [head(part.number, n_bytes) + texts[0], *texts[1:]]


def _header(parts: Iterable[_Part]) -> bytes:
    """Return what stands in all of ``parts`` beside their nodes: versions."""
    versions: dict[bytes, bytes] = {}
    newest = 0
    for part in parts:
        newest = max(newest, part.version)
        for domain, version in part.operators.items():
            if versions.setdefault(domain, version) != version:
                raise JoinError("pieces of different versions of ONNX")
    return b"".join((field(ModelField.IR_VERSION, newest), *versions.values()))


def _is_kernel(node: bytes) -> bool:
    operator = b"".join(contents(node, NodeField.OP_TYPE)).decode("ascii", "replace")
    domain = b"".join(contents(node, NodeField.DOMAIN)).decode("ascii", "replace")
    kernel = kernel_of(named(domain, operator))
    return kernel is not None and kernel.launch == "joins"


def _body(graph: bytes) -> bytes:
    bodies = contents(graph, ModelField.GRAPH)
    if len(bodies) != 1:
        raise JoinError("no graph")
    return bodies[0]
