"""Bodies of If, Loop and Scan as a file can hold them: no name twice, weights outside, lengths open.

ONNX Runtime names what it inserts in each graph for itself: before an If and inside there may be the same
name, which it then refuses to read. And it holds a weight inside a body several
times over while loading; the main graph's are loaded like all others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.graphs.graph import Graph, all_graphs, is_streamable
from models.graphs.rewriter import Rewriter
from models.network.names import Op
from models.network.node import Node

# An element type, as Cast names it.
_INT64 = 7


def rename_inner(graph: Graph) -> Graph:
    """Return ``graph`` with other names for what bodies define under one that exists outside of them."""
    names = _Names(graph)
    outside = _defined(graph)
    return _in_bodies(graph, lambda body: _rename_defined(body, outside, names))


def move_out(graph: Graph) -> Graph:
    """Return ``graph`` with the weights of all bodies, under names of their own."""
    names, moved = _Names(graph), dict[str, NDArray[Any]]()
    graph = _in_bodies(graph, lambda body: _move_out(body, moved, names))
    return replace(graph, constants={**graph.constants, **moved})


class _Names:
    """Gives names that no graph of a model has."""

    def __init__(self, graph: Graph) -> None:
        self._taken = {name for body in all_graphs(graph) for name in _mentioned(body)}
        self._count = 0

    def like(self, name: str) -> str:
        new = name
        while new in self._taken:
            self._count += 1
            new = f"{name}/{self._count}"
        self._taken.add(new)
        return new


def _mentioned(graph: Graph) -> Iterator[str]:
    yield from _defined(graph)
    for node in graph.nodes:
        yield from node.inputs


def _defined(graph: Graph) -> set[str]:
    results = (name for node in graph.nodes for name in node.made)
    return {*graph.inputs, *graph.constants, *results}


def _in_bodies(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """Return ``graph`` with its bodies, but not those inside of them, as ``change`` returns them."""
    return replace(graph, nodes=tuple(_in_bodies_of(node, change) for node in graph.nodes))


def _in_bodies_of(node: Node, change: Callable[[Graph], Graph]) -> Node:
    bodies = {
        name: change(value) for name, value in node.attributes.items() if isinstance(value, Graph)
    }
    return replace(node, attributes={**node.attributes, **bodies}) if bodies else node


def _rename_defined(body: Graph, outside: set[str], names: _Names) -> Graph:
    body = _renamed(body, {name: names.like(name) for name in sorted(_defined(body) & outside)})
    visible = outside | _defined(body)
    return _in_bodies(body, lambda inner: _rename_defined(inner, visible, names))


def _renamed(body: Graph, new: Mapping[str, str]) -> Graph:
    """Return ``body`` with ``new`` names for its values wherever it and its own bodies use them."""
    if not new:
        return body
    nodes = (node.replaced(outputs=_as(new, node.outputs)) for node in with_reads(body.nodes, new))
    constants = {new.get(name, name): array for name, array in body.constants.items()}
    return _with_ports(
        replace(body, nodes=tuple(nodes), constants=constants, inputs=_as(new, body.inputs)), new
    )


def _with_ports(body: Graph, new: Mapping[str, str]) -> Graph:
    """Return ``body`` with ``new`` names for its outputs, and for what is known of values."""
    return replace(
        body,
        values={new.get(name, name): item for name, item in body.values.items()},
        dynamic={new.get(name, name): item for name, item in body.dynamic.items()},
        outputs=_as(new, body.outputs),
    )


def _as(new: Mapping[str, str], names: Iterable[str]) -> tuple[str, ...]:
    return tuple(new.get(name, name) for name in names)


def with_reads(nodes: Iterable[Node], new: Mapping[str, str]) -> Iterator[Node]:
    """Yield ``nodes`` that read, also inside of them, values under ``new`` names."""
    for node in nodes:
        yield _in_bodies_of(
            node.replaced(_as(new, node.inputs)), lambda body: _with_inner_reads(body, new)
        )


def _with_inner_reads(body: Graph, new: Mapping[str, str]) -> Graph:
    hidden = _defined(body)
    visible = {old: name for old, name in new.items() if old not in hidden}
    return _with_ports(replace(body, nodes=tuple(with_reads(body.nodes, visible))), visible)


def _move_out(body: Graph, main: dict[str, NDArray[Any]], names: _Names) -> Graph:
    """Return ``body`` without its weights, which are added to ``main``."""
    moved = {
        name: names.like(name)
        for name, array in body.constants.items()
        if name not in body.inputs and _is_weight(array)
    }
    main |= {moved[name]: body.constants[name] for name in moved}
    # A body cannot return what no node of it computes.
    copies = (
        body.node(Op.Identity, [moved[name]], [name]) for name in body.outputs if name in moved
    )
    body = replace(
        body,
        nodes=(*with_reads(body.nodes, moved), *copies),
        constants={name: array for name, array in body.constants.items() if name not in moved},
    )
    return _in_bodies(body, lambda inner: _move_out(inner, main, names))


def _is_weight(array: NDArray[Any]) -> bool:
    return array.dtype != np.object_ and is_streamable(array.dtype, array.nbytes)


class OpenLengths(Rewriter):
    """Lets each If read values whose lengths are known only at run time.

    ONNX Runtime infers shapes in both branches. Of fixed lengths one branch may be for others: a voice
    detector for 8 and 16 kHz squeezes the axis that is single at its own rate alone. So what branches read
    is reshaped to its own shape times the condition times zero: no folding sees through that, and a Reshape
    keeps lengths where its shape has zeros, which the meter can draw, too.
    """

    def replaced(self, node: Node) -> Iterator[Node] | None:
        if node.operator != Op.If:
            return None
        inside = dict.fromkeys(name for body in node.bodies for name in body.captured)
        read = [name for name in inside if name not in self.constants and name not in node.inputs]
        return self._opened(node, read) if read else None

    def _opened(self, node: Node, read: Iterable[str]) -> Iterator[Node]:
        label = node.name or node.output
        chosen, none = self.fresh(f"{label}/chosen"), self.fresh(f"{label}/none")
        zero = self.constant(f"{label}/zero", np.array(0, np.int64))
        yield self.node(Op.Cast, node.inputs, [chosen], chosen, to=_INT64)
        yield self.node(Op.Mul, [chosen, zero], [none], none)
        new = {name: self.fresh(f"{label}/{name}") for name in read}
        for name, copy in new.items():
            shape, same = self.fresh(f"{copy}/shape"), self.fresh(f"{copy}/same")
            yield self.node(Op.Shape, [name], [shape], shape)
            yield self.node(Op.Mul, [shape, none], [same], same)
            yield self.node(Op.Reshape, [name, same], [copy], copy)
        yield from with_reads([node], new)
