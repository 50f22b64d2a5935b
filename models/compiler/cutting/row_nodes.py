"""Operators that can make a few rows of their output from a few rows of their inputs.

Each gets a graph of its own that takes any number of rows: what padding there is above and below lies in
memory, in rows of zeros (in front of a maximum: of the lowest number), so that the first, the middle and
the last rows are made by one kernel, with the bits of the whole. Only operators of the blocked layout
and operators on elements are here: their kernels add up each output by itself, however many there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

import numpy as np

from models.compiler.analysis.alias import written_over
from models.compiler.analysis.node_groups import Fused
from models.compiler.cutting.row_layouts import RowLayouts, planes_of, taken
from models.compiler.optimising.normalise import is_scaled
from models.graphs.graph import Graph
from models.network.catalogue import traits_of
from models.network.fields import stretches
from models.network.names import NCHWC, PLAIN_DOMAINS, Op
from models.network.node import Node
from models.network.operators.convolution import ADDEND
from models.network.operators.reading import BatchNorm, Convolution, Pooling, Resize
from models.network.windows import SAME, Window
from models.packs.records.row_parts import SHARING_THREADS, Outside, UnrolledRows
from models.packs.target import Target
from models.runtime.kernels import kernel_of

_ROWS, _COLUMNS = 2, 3
Windowed = Convolution | Pooling


@dataclass(frozen=True)
class RowNode:
    """Node ``index``, or several that a GPU computes at once from there on, as an operator on rows.

    ``inputs``: values and the rows of them that it needs, in the order of its graph; then ``weights``.
    ``fill``: what lies outside of the inputs.
    ``unrolled``: what its kernel allocates. ``exact``: whether rows have the bits of the whole.
    ``nodes``: as they are on rows, without padding of their own; (): nothing is computed, each of
    ``outputs`` is planes of ``inputs``, ``parts`` says which: name, first plane and how many.
    """

    index: int
    inputs: tuple[tuple[str, Window], ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...] = ()
    parts: tuple[tuple[tuple[str, int, int], ...], ...] = ()
    weights: tuple[str, ...] = ()
    fill: Outside = "zero"
    in_place: int | None = None
    unrolled: UnrolledRows | None = None
    exact: bool = True


@dataclass
class RowGraph:
    """``nodes`` in order; ``planes`` and ``shapes`` of every value that they read or make."""

    nodes: list[RowNode] = field(default_factory=list)
    planes: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


def find_rows(graph: Graph, target: Target, fused: Fused) -> RowGraph:
    """Return what of ``graph`` can run on rows on ``target``.

    ``fused``: nodes that are computed at once, by the first.
    """
    finder = _Finder(graph, target)
    index = 0
    while index < len(graph.nodes):
        end = fused[index].end if index in fused else index + 1
        finder.look(range(index, end))
        index = end
    return finder.found


class _Finder:
    """Goes through the nodes once; what is not blocked lies as its shape says."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self.found = RowGraph()
        self._graph = graph
        self._block = target.block
        self._layouts = RowLayouts(graph, target.block)
        self._on_gpu = target.capability is not None

    def look(self, indices: range) -> None:
        """Look at the nodes ``indices``, which are computed at once."""
        rows = [row for index in indices if (row := self._looked_at(index)) is not None]
        if len(rows) < len(indices):
            return
        row = rows[0] if len(rows) == 1 else self._together(rows)
        if row is None:
            return
        names = (*(name for name, _ in row.inputs), *row.outputs)
        if not all(map(self._layouts.has_rows, names)):
            return
        for name in names:
            self.found.shapes[name] = self._layouts.shape(name)
            self.found.planes[name] = self._layouts.planes(name)
        self.found.nodes.append(row)

    def _looked_at(self, index: int) -> RowNode | None:
        node = self._graph.nodes[index]
        self._layouts.note(node)
        return None if self._graph.region(index) is not None else self._row_node(index, node)

    def _together(self, rows: Sequence[RowNode]) -> RowNode | None:
        """Return ``rows``, each of which reads what the ones before made, as one; None: they are none."""
        inner = {name for row in rows for name in row.outputs}
        read = [item for row in rows for item in row.inputs if item[0] not in inner]
        windows = dict(read)
        if set(windows.items()) != set(read) or not all(row.nodes for row in rows):
            return None  # rows of one value through two windows; or planes of others
        first, last = rows[0], rows[-1]
        weights = dict.fromkeys(name for row in rows for name in row.weights)
        return replace(
            first,
            inputs=tuple(windows.items()),
            outputs=last.outputs,
            nodes=tuple(node for row in rows for node in row.nodes),
            weights=tuple(weights),
            in_place=self._written_over(rows, list(windows)),
            exact=all(row.exact for row in rows),
        )

    def _written_over(self, rows: Sequence[RowNode], inputs: Sequence[str]) -> int | None:
        """Return the input that ``rows`` may write over: what a convolution adds, or all that is read."""
        if not isinstance(self._graph.operator(rows[0].nodes[0]), Convolution):
            return 0 if len(inputs) == 1 and all(row.in_place is not None for row in rows) else None
        own = {name for name, _ in rows[0].inputs}
        added = [number for number, name in enumerate(inputs) if name not in own]
        return added[0] if len(added) == 1 else None

    def _row_node(self, index: int, node: Node) -> RowNode | None:
        traits = traits_of(node.operator)
        if traits.elements == "moved" and not traits.is_blocked:
            return self._moved(index, node) if all(node.outputs) else None
        if len(node.made) != 1:
            return None
        if traits.is_blocked:
            return self._blocked_node(index, node)
        if self._is_on_elements(node.operator):
            return self._pointwise(index, node)
        is_plain = self._layouts.blocked.isdisjoint(node.inputs[:1])
        return self._plain_node(index, node) if is_plain else None

    def _is_on_elements(self, operator: str) -> bool:
        """Return whether the target makes elements by ``operator`` alike, however many there are."""
        kernel = kernel_of(operator)
        # A GPU computes every element by itself, a CPU's vectors not always.
        is_even = self._on_gpu or kernel is None or kernel.is_even
        return is_even and traits_of(operator).function is not None

    def _normalised(self, index: int, node: Node) -> RowNode | None:
        """One that nothing has taken in: each element is scaled by what its channel says."""
        is_constant = all(name in self._graph.constants for name in node.inputs[1:])
        return self._made(index, node, [(node.inputs[0], SAME)]) if is_constant else None

    def _planes(self, index: int, node: Node) -> RowNode | None:
        """What puts planes in another order; in the blocked layout these are whole blocks."""
        planes = planes_of(self._graph, node)
        names = dict.fromkeys(name for parts in planes.values() for name, _, _ in parts)
        blocked = not self._layouts.blocked.isdisjoint(names)
        if not all(map(self._layouts.has_rows, (*names, *planes))) or not planes:
            return None
        if blocked and not self._layouts.follows(node):
            return None
        unit = self._block if blocked else 1
        parts = tuple(
            tuple((name, first // unit, count // unit) for name, first, count in each)
            for each in planes.values()
        )
        return RowNode(index, tuple((name, SAME) for name in names), (*planes,), parts=parts)

    def _moved(self, index: int, node: Node) -> RowNode | None:
        """What moves planes, or outside of the blocked layout some of their rows or columns."""
        planes = self._planes(index, node)
        if planes is not None or not self._layouts.blocked.isdisjoint(node.inputs[:1]):
            return planes
        if node.operator == Op.Slice:
            return self._cropped(index, node)
        size = node.attributes.get("blocksize", 1)
        if node.operator == Op.SpaceToDepth:
            return self._made(index, node, [(node.inputs[0], Window(kernel=size, stride=size))])
        if node.operator == Op.DepthToSpace:
            return self._made(index, node, [(node.inputs[0], Window(factor=size))])
        return None

    def _plain_node(self, index: int, node: Node) -> RowNode | None:
        """What runs on rows outside of the blocked layout, where channels are planes."""
        match self._graph.operator(node):
            case Convolution() | Pooling() as operator:
                return self._windowed(index, node, operator)
            case Resize() as operator:
                return self._upsampled(index, node, operator)
            case BatchNorm():
                return self._normalised(index, node)
        return None

    def _cropped(self, index: int, node: Node) -> RowNode | None:
        """Some rows, which are just read, or some columns, which the node takes."""
        source, result = node.inputs[0], node.output
        cropping = taken(self._graph, node)
        if cropping is None or not (
            self._layouts.has_rows(source) and self._layouts.has_rows(result)
        ):
            return None
        axis, lines = cropping
        if axis == _ROWS:
            node, window = (
                self._graph.node(Op.Identity, [source], [result]),
                Window(before=-lines.start).fitted(self._layouts.shape(source)[_ROWS], len(lines)),
            )
        elif axis == _COLUMNS:
            window = SAME
        else:
            return None
        return self._made(index, node, [(source, window)])

    def _pointwise(self, index: int, node: Node) -> RowNode | None:
        """Operators on elements of tensors of one shape, and constants that are the same in every row."""
        tensors = [*dict.fromkeys(name for name in node.inputs if name in self._graph.values)]
        shapes = {self._layouts.shape(name) for name in tensors}
        blocked = {name in self._layouts.blocked for name in tensors}
        constants = [name for name in node.inputs if name and name not in tensors]
        if len(shapes) != 1 or len(blocked) != 1:
            return None
        for name in constants:
            constant = self._graph.constants.get(name)
            if constant is None or (constant.size > 1 and blocked == {True}):
                return None
            if constant.size > 1 and constant.ndim > 1 and constant.shape[-2] != 1:
                return None
            if not all(stretches(constant.shape, shape) for shape in shapes):
                return (
                    None  # it makes the output larger than the tensors, or is a fault of the file
                )
        self._layouts.reshape(node.output, shapes.pop())  # a chain (chains.py)
        in_place = 0 if written_over(self._graph, node) else None
        return self._made(index, node, [(name, SAME) for name in tensors], in_place)

    def _blocked_node(self, index: int, node: Node) -> RowNode | None:
        if traits_of(node.operator).elements == "moved":  # into blocks, or out of them
            kept = not node.attributes.get("channels_last")
            return self._made(index, node, [(node.inputs[0], SAME)]) if kept else None
        match self._graph.operator(node):
            case Convolution() | Pooling() as operator:
                return self._windowed(index, node, operator)
            case Resize() as operator:
                return self._upsampled(index, node, operator)
        return None

    def _windowed(self, index: int, node: Node, operator: Windowed) -> RowNode | None:
        """A convolution or a pool: what it pads above and below, it finds in memory."""
        # Factors of a gate are made of all rows.
        is_gate = any(name in self._graph.values for name in node.inputs[1:ADDEND])
        if is_gate or not all(map(self._layouts.has_rows, (node.inputs[0], node.output))):
            return None
        if loses_bits(node, operator):
            return None
        window = window_of(operator, 0)
        if window is None:
            return None
        inputs = [(operator.x.name, window)]
        if isinstance(operator, Convolution) and operator.addend is not None:
            inputs.append((operator.addend.name, SAME))
        if len({name for name, _ in inputs}) != len(inputs):
            return None
        across = operator.windows.axes[1]
        beside = padded(node, [0, across.before, 0, across.behind])
        row = self._made(index, beside, inputs, len(inputs) - 1 or None, fill_of(operator))
        unrolled = None if self._on_gpu else _unrolled(node, operator)
        return replace(row, unrolled=unrolled, exact=_is_exact(node, operator))

    def _upsampled(self, index: int, node: Node, operator: Resize) -> RowNode | None:
        factors = operator.factors
        if factors is None or factors[:2] != (1, 1):
            return None
        if node.operator == Op.Resize and not is_scaled(node):
            return None
        return self._made(index, node, [(node.inputs[0], Window(factor=factors[2]))])

    def _made(
        self,
        index: int,
        node: Node,
        inputs: Sequence[tuple[str, Window]],
        in_place: int | None = None,
        fill: Outside = "zero",
    ) -> RowNode:
        weights = dict.fromkeys(
            name for name in node.inputs if name and self._graph.is_weight(name)
        )
        return RowNode(
            index,
            tuple(inputs),
            (node.output,),
            (node,),
            weights=tuple(weights),
            fill=fill,
            in_place=in_place,
        )


def _unrolled(node: Node, operator: Windowed) -> UnrolledRows | None:
    """Return what a convolution outside of the blocked layout unrolls; None: it is none such."""
    if node.domain == NCHWC or not isinstance(operator, Convolution) or operator.is_pointwise:
        return None
    return UnrolledRows(
        pixel_bytes=operator.depth * np.dtype(operator.x.dtype).itemsize,
        filters=operator.filters // operator.groups,
        segments=max(SHARING_THREADS, operator.groups),
    )


def _is_exact(node: Node, operator: Windowed) -> bool:
    """Return whether rows have the bits of the whole.

    A plain convolution is a product of matrices, which divides long sums by how many pixels there are; on a
    GPU the whole may be computed by another algorithm. One of a few products has no long sums.
    """
    blocked = node.domain == NCHWC
    return blocked or not isinstance(operator, Convolution) or operator.is_depthwise


def window_of(operator: Windowed, axis: int) -> Window | None:
    """Return the window of rows (axis 0) or columns (1); None where those at the border are special."""
    windows = operator.windows
    given = windows.axes[axis]
    window = given.fitted(windows.size[axis], windows.result[axis])
    if max(window.before, window.behind) >= window.reach:
        return None  # the first or the last are made of padding alone
    reaches_out = max(window.before, window.behind) > 0
    if isinstance(operator, Pooling) and reaches_out:
        match operator.kind:
            case "mean":
                if not operator.counts_padding or window.behind > given.behind:
                    return None  # means of fewer
            case "largest":
                if fill_of(operator) == "lowest" and window.behind > 0:
                    return None  # a NaN behind which a lowest number comes is lost
            case kind:
                assert_never(kind)
    return window


def fill_of(operator: Windowed) -> Outside:
    """Return what memory holds around the input.

    ONNX Runtime's maximum forgets a NaN when another number follows it, or comes before it. The first or
    the last row again changes nothing, as long as it is in each window that reaches over it: where the
    kernel is not dilated.
    """
    if isinstance(operator, Convolution):
        return "zero"
    match operator.kind:
        case "mean":
            return "zero"
        case "largest":
            return "lowest" if set(operator.windows.dilations) != {1} else "edge"
        case kind:
            assert_never(kind)


def loses_bits(node: Node, operator: Windowed) -> bool:
    """Return whether ``node`` is computed in another way without its padding, or on some rows.

    A convolution of one pixel at a time is a product of matrices, which adds up in another order. A pool
    whose kernel has the shape of its input is, outside of the blocked layout, a global one, which takes
    numbers in another order: then means round otherwise, and maxima forget other NaNs and signs of zeros.
    Some rows have this shape where the whole width is one window.
    """
    windows = operator.windows
    if isinstance(operator, Convolution):
        return max(windows.kernel) == 1 and any((*windows.before, *windows.behind))
    across, width = windows.axes[1], windows.size[1]
    is_one_window = across.kernel == width and across.before == across.behind == 0
    return node.domain in PLAIN_DOMAINS and is_one_window


def padded(node: Node, pads: Sequence[int]) -> Node:
    """Return ``node`` with other padding."""
    if node.attributes.get("auto_pad", "NOTSET") != "NOTSET":
        node = node.with_attributes(auto_pad=None)
    return node.with_attributes(pads=list(pads))
