"""Small corrections to the optimised model, so that the rest of the compiler meets fewer cases."""

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from models.compiler.optimising.bodies import with_reads
from models.compiler.optimising.refused_nodes import title
from models.errors import CompileError
from models.graphs.graph import Graph, has_dtype
from models.graphs.rewriter import Rewriter
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import Op
from models.network.node import Node
from models.network.operators.resizing import Resize
from models.network.windows import windows_of

#: Inputs: what is cut, starts, ends, axes, then perhaps steps.
_AXES = 3
# The first set of operators whose Resize takes sizes, its inputs before these, and how it repeats elements.
_RESIZE_WITH_SIZES = 11
_SIZES = 3
_REPEATS = {
    "coordinate_transformation_mode": "asymmetric",
    "mode": "nearest",
    "nearest_mode": "floor",
}
# The first operator set whose Gemm needs no third input.
_GEMM_WITHOUT_BIAS = 11
_PRODUCTS = frozenset({"float32", "float64"})
# Of ONNX's own operators, where a network has none of them.
_OPSET = 17


def copy_constant_outputs(graph: Graph) -> Graph:
    """Let a node compute each output that is a constant; the constant gets another name."""
    renamed = {name: f"{name}/constant" for name in graph.constants if name in graph.outputs}
    if not renamed:
        return graph
    graph = replace(graph, opsets={**graph.opsets, "": graph.opsets.get("", _OPSET)})
    copies = (graph.node(Op.Identity, [new], [name], name) for name, new in renamed.items())
    return replace(
        graph,
        nodes=(*with_reads(graph.nodes, renamed), *copies),
        constants={renamed.get(name, name): array for name, array in graph.constants.items()},
    )


def check_ports(graph: Graph, path: Path) -> None:
    """Check that requests can carry inputs and outputs.

    Raises:
        CompileError: one of them has a type that the Open Inference Protocol does not have.
    """
    for kind, names in (("input", graph.inputs), ("output", graph.outputs)):
        for name in names:
            dynamic = graph.dynamic.get(name)
            if dynamic is not None and dynamic.array is None:
                others = kind == "output" and len(graph.outputs) > 1
                option = (
                    f"--without-output {shlex.quote(name)} leaves it out"
                    if others
                    else "export it with another type"
                )
                producer = graph.nodes[graph.makers[name]] if name in graph.makers else None
                origin = f", the result of {title(producer)}" if producer else ""
                raise CompileError(
                    f"{path}: {kind}: {dynamic.reason}{origin}, which no request can carry; {option}"
                )


class TakeCropsApart(Rewriter):
    """Replaces each Slice with constant places on several axes by one for each: rows, then columns.

    On rows (cutting/row_nodes.py) the first is what is read and the second a kernel. That is
    said behind ONNX Runtime, which would make one node of the rows that two patches share, and keep them.
    """

    def replaced(self, node: Node) -> Iterator[Node] | None:
        if node.operator != Op.Slice or len(node.inputs) <= _AXES:
            return None
        given = [array for name in node.inputs[1:] if (array := self.numbers(name)) is not None]
        is_known = len(given) == len(node.inputs) - 1 and given[0].size > 1
        is_crop = is_known and all((step == 1).all() for step in given[_AXES:])
        return self._one_by_one(node, given) if is_crop else None

    def _one_by_one(self, node: Node, given: Sequence[NDArray[Any]]) -> Iterator[Node]:
        source, name, count = node.inputs[0], node.output, given[0].size
        for number in range(count):
            last = number == count - 1
            places = [
                self.constant(f"{name}.place{number}.{part}", item[number : number + 1])
                for part, item in zip(("start", "end", "axis"), given, strict=False)
            ]
            result = name if last else f"{name}.axis{number}"
            label = node.name if last else result
            yield self.node(Op.Slice, [source, *places], [result], label)
            source = result


class ScaleResizes(Rewriter):
    """Rewrites resizes that repeat elements by these factors to one form, whatever sizes and modes say.

    So a node makes the same of some rows as of all (models/compiler/cutting/row_nodes.py).
    """

    def replaced(self, node: Node) -> list[Node] | None:
        if node.operator != Op.Resize or self.opsets[""] < _RESIZE_WITH_SIZES:
            return None
        operator = self.operator(node)
        factors = operator.factors if isinstance(operator, Resize) else None
        if factors is None or is_scaled(node):
            return None
        return [self.resize(node.inputs[0], node.output, factors, node.name, **_REPEATS)]


def is_scaled(node: Node) -> bool:
    """Return whether a Resize that repeats elements would do the same with other sizes."""
    return not any(node.inputs[_SIZES:]) and node.attributes.items() >= _REPEATS.items()


def store_by_row(graph: Graph) -> Graph:
    """Return ``graph`` with constant matrices by output row, so that they can be split, if only they move.

    Several nodes may read one, as the steps of an unrolled recurrent network do, if all read it by column.
    ``Gemm`` with transB=0 becomes transB=1, and so does a ``MatMul`` of one row; others compute several
    rows, whose results do not lie together by output channel. Nothing is copied here: a constant becomes
    a view with its axes swapped.
    """
    uses = Counter(name for node in graph.nodes for name in node.reads)
    has_gemm = graph.opsets.get("", 0) >= _GEMM_WITHOUT_BIAS
    constants, nodes = dict(graph.constants), list(graph.nodes)
    products: defaultdict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        if _is_gemm_by_column(node) or (has_gemm and _is_row_product(node, graph.values)):
            products[node.inputs[1]].append(index)
    for name, indices in products.items():
        matrix = constants.get(name)
        if matrix is None or not has_dtype(matrix) or matrix.ndim != 2:
            continue
        if uses[name] != len(indices):
            continue
        constants[name] = matrix.T
        for index in indices:
            node = nodes[index].with_attributes(transB=1)
            nodes[index] = replace(node, operator=Op.Gemm) if node.operator == Op.MatMul else node
    return replace(graph, nodes=tuple(nodes), constants=constants)


def _is_gemm_by_column(node: Node) -> bool:
    return traits_of(node.operator).computes(Op.Gemm) and not node.attributes.get("transB", 0)


def _is_row_product(node: Node, values: Mapping[str, Array]) -> bool:
    if node.operator != Op.MatMul:
        return False
    row = values.get(node.inputs[0])
    return row is not None and len(row.shape) == 2 and row.shape[0] == 1 and row.dtype in _PRODUCTS


# Maxima of bytes before operators that keep the order of numbers; and pools with an unforeseen output.
#
# An operator that keeps the order of numbers maps the largest to the largest. So an activation
# by a table, or a concatenation that rounds again, may come behind the maxima, and has a fourth to do.
# What layers make is then read by maxima at once, and never lies in a plan (cutting/quantised_tasks.py).
#
# With ``ceil_mode`` a last window that begins in the padding is left out; the shape that is inferred
# counts it. Such a pool is said again with padding of which the shape comes that is computed.

# The axis of channels of such maxima.
_CHANNELS = 3


class PoolFirst(Rewriter):
    """Moves maxima of bytes before what keeps their order, where they alone read what that makes."""

    def replaced(self, node: Node) -> list[Node] | None:
        if node.operator != Op.NhwcMaxPool or len(node.outputs) > 1:
            return None
        return self._moved(node, node.inputs[0], node.output) or None

    def _moved(self, pool: Node, source: str, result: str) -> list[Node]:
        """Return the operators that make ``result`` of maxima; none where ``source`` is not theirs."""
        maker = self.makers.get(source)
        places = () if maker is None else _places(maker)
        if maker is None or not places or self.uses[source] != 1:
            return []
        inputs, nodes = [*maker.inputs], list[Node]()
        for place in places:
            name, read = f"{result}/{place}", inputs[place]
            inputs[place] = name
            further = self._moved(pool, read, name)
            nodes += further
            if further:
                continue
            largest = pool.replaced([read], [name], name)
            if read in self.makers and read not in self.behind:
                self.behind[read] = largest
            else:
                nodes.append(largest)
        return [*nodes, maker.replaced(inputs, [result])]


def _places(node: Node) -> tuple[int, ...]:
    """Return which inputs of ``node`` are numbers whose order it keeps, channel by channel."""
    traits = traits_of(node.operator)
    parameters = {**traits.attributes, **node.attributes}
    by_alpha = traits.keeps_order == "by_alpha" and parameters["alpha"] >= 0
    if not traits.on_bytes or not (by_alpha or traits.keeps_order == "yes"):
        return ()
    if traits.of is Op.Concat and parameters["axis"] not in (-1, _CHANNELS):
        return ()
    return traits.positions(len(node.inputs), "data")


def settle_pool(graph: Graph) -> Graph:
    """Change the first pool whose output has another shape than is computed, and forget what values are.

    Shapes behind it are wrong, too: infer them again, and call this again until it returns ``graph``.
    """
    for index, node in enumerate(graph.nodes):
        settled = _settled(node, graph.values)
        if settled is not None:
            return replace(
                graph,
                nodes=(*graph.nodes[:index], settled, *graph.nodes[index + 1 :]),
                values={name: graph.values[name] for name in graph.inputs if name in graph.values},
                dynamic={
                    name: graph.dynamic[name] for name in graph.inputs if name in graph.dynamic
                },
            )
    return graph


def _settled(node: Node, values: Mapping[str, Array]) -> Node | None:
    """Return a pool with padding of which the shape comes that is computed; None: it has that."""
    traits, known = traits_of(node.operator), node.attributes
    if traits.access != "windowed" or traits.on_bytes or node.inputs[0] not in values:
        return None
    if not known.get("ceil_mode", 0) or known.get("auto_pad", "NOTSET") != "NOTSET":
        return None
    windows = windows_of(known, known["kernel_shape"], values[node.inputs[0]].shape[2:])
    if values[node.output].shape[2:] == windows.result:
        return None
    # What the last windows need behind the input, and what they are given.
    needed = [
        axis.fitted(length, n_outputs).behind
        for axis, length, n_outputs in zip(windows.axes, windows.size, windows.result, strict=True)
    ]
    ends = [min(pair) for pair in zip(needed, windows.behind, strict=True)]
    if min(ends) < 0:  # windows so far apart that one less leaves a part of the input
        node = node.with_attributes(ceil_mode=0)
        ends = [max(pair) for pair in zip(needed, windows.behind, strict=True)]
    return node.with_attributes(pads=[*windows.before, *ends])
