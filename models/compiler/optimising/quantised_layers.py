"""Quantised layers whose weights stream: convolutions as matrix products, large weights in parts.

Two things are against it. Weights that are no constants ONNX Runtime's QLinearConv turns round for each
run, byte by byte, which takes ten times as long as to multiply with them; and its tensors have their
channels last, so output channels do not lie together and no chunk writes a range of bytes. So here a
convolution of many weights and few pixels becomes the windows of its input (Gather) and a product with a
matrix that is stored as the product reads it; and a layer of more weights than a part may have becomes
several of fewer output channels, which Concat joins.

Both give the same bits: sums of integers are exact, and each is rounded by itself. All constants of such a
layer are streamed with it, its scales, too, and no other node reads them: so layers share sessions.
"""

import itertools
import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.graphs.graph import Edits, Graph
from models.network.catalogue import traits_of
from models.network.names import Op
from models.network.node import Node
from models.network.windows import Windows, windows_of

#: Parts cannot be joined to larger kernels, as chunks can: they should not be small.
LEAST_PART_BYTES = 256 << 10
# To turn weights round takes 1.4 ns a byte; a product takes some 0.5 ns longer than QLinearConv for each
# result. Measured with AVX-512 and two threads.
_PIXELS_A_WEIGHT = 2
# All windows of an input lie there at once, nine times as large as it: more would be most of a network.
_MOST_WINDOWS_BYTES = 2 << 20
# Which pixels windows have is streamed with the weights, and should be little beside these.
_INDEX_PART = 4
# MLAS multiplies with so many columns at once.
_COLUMNS_AT_ONCE = 16
# From here on Pad takes its widths as an input.
_OPSET = 11
_IMAGE_RANK = 4
# Bounds of a layer that is one part.
_WHOLE = 2
Shape = tuple[int, ...]
Weight = NDArray[Any]


@dataclass(frozen=True)
class WindowPixels:
    """``pixels``: which pixel of the input each row of each of ``windows`` is, int32 [pixels out * kernel].

    The pixel behind the last one stands for what lies outside of the image. ``outside``: whether any window
    reaches there. ``plain``: each window is its pixel.
    """

    windows: Windows
    pixels: NDArray[np.int32]
    outside: bool

    @property
    def plain(self) -> bool:
        return np.array_equal(self.pixels, np.arange(len(self.pixels)))


def pixels_of(windows: Windows, images: int) -> WindowPixels:
    """Return the pixels that ``windows`` of rows and columns have on so many images."""
    rows, columns = (
        axis.begin(np.arange(made))[:, None] + np.arange(axis.kernel) * axis.dilation
        for axis, made in zip(windows.axes, windows.result, strict=True)
    )
    rows, columns = rows[:, None, :, None], columns[None, :, None, :]
    height, width = windows.size
    held = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    size = height * width
    image = np.arange(images)[:, None, None, None, None] * size
    pixels = np.where(held, image + rows * width + columns, images * size)
    return WindowPixels(windows, pixels.reshape(-1).astype(np.int32), bool((~held).any()))


@dataclass(frozen=True)
class _Form:
    """Where an operator has its weights: input ``weight``, whose axis ``axis`` is output channels.

    ``vectors``: inputs with a number for each output channel, or one for all. ``result``: the axis of
    output channels in what it makes, from the end where it is negative.
    """

    weight: int
    axis: int
    vectors: tuple[int, ...]
    result: int = -1


def stream_quantised(graph: Graph, part_bytes: int, folder: Path, kept: Collection[str]) -> Graph:
    """Return ``graph`` with quantised layers that stream.

    ``part_bytes``: the most weights of a part, if one can be so small. ``folder``: for a file with the
    weights as they lie then. ``kept``: what nodes make that stay as they are.
    """
    if graph.opsets.get("", 0) < _OPSET or not any(_form(graph, node) for node in graph.nodes):
        return graph
    rewriter = _Rewriter(Edits(graph, folder), part_bytes)
    nodes = [
        new
        for node in graph.nodes
        for new in ([node] if node.output in kept else rewriter.rewritten(node))
    ]
    return rewriter.edits.applied(nodes)


def _form(graph: Graph, node: Node) -> _Form | None:
    """Return where ``node`` has its weights, if they are large and output channels can be divided."""
    form, given = _form_of(node.operator), node.attributes
    if form is None:
        return None
    convolves = _convolves(node)
    if convolves:
        form = replace(form, result=-1 if given.get("channels_last", 0) else 1)
    elif given.get("transB", 0):
        form = replace(form, axis=0)
    fits = given.get("group", 1) == 1 and not given.get("transA", 0)
    name = node.inputs[form.weight]
    if not fits or not graph.is_weight(name) or len(node.made) != 1:
        return None
    weight = graph.constants[name]
    vectors = [node.inputs[place] for place in form.vectors if place < len(node.inputs)]
    shapes = {
        graph.constants[item].shape if item in graph.constants else None for item in vectors if item
    }
    placed = {node.inputs[0], node.output} <= graph.values.keys()
    is_matrix = convolves or weight.ndim == 2
    alike = shapes <= {(), (1,), (weight.shape[form.axis],)}
    return form if placed and is_matrix and alike else None


def _form_of(operator: str) -> _Form | None:
    """Return where ``operator`` has its weights; None: it is no quantised layer, or packs them."""
    traits = traits_of(operator)
    axes = {at: operand.axis for at, operand in enumerate(traits.operands)}
    along = {at: axis for at, axis in axes.items() if axis is not None}
    weights = [at for at in along if traits.operands[at].role == "weight"]
    if traits.elements != "quantised" or not traits.layer or not weights:
        return None
    (weight,) = weights
    # Of a matrix columns, the last axis, are output channels.
    return _Form(weight, along.pop(weight) % 2, tuple(along))


def _convolves(node: Node) -> bool:
    return traits_of(node.operator).access == "windowed"


class _Rewriter:
    """Rewrites one node after the other."""

    def __init__(self, edits: Edits, part_bytes: int) -> None:
        self.edits = edits
        self._graph = edits.graph
        self._part_bytes = part_bytes
        self._nodes: list[Node] = []

    def rewritten(self, node: Node) -> list[Node]:
        """Return ``node``, or what computes the same and streams."""
        form = _form(self._graph, node)
        if form is None:
            traits = traits_of(node.operator)
            has_scales = traits.elements == "quantised" and not traits.layer
            return [self._with_scales(node) if has_scales else node]
        self._nodes = []
        weight = self._graph.constants[node.inputs[form.weight]]
        windows = self._windows(node, weight.shape)
        if windows is not None:
            self._product(node, weight, windows)
        elif form.axis == 0 and not _convolves(node):
            self._parts(node.with_attributes(transB=None), replace(form, axis=1), weight.T)
        else:
            self._parts(node, form, weight)
        return self._nodes

    def _with_scales(self, node: Node, first: int = 0) -> Node:
        """Return ``node`` with small constants of its own as inputs: it has a session with others then.

        ``first``: of the inputs that may be constants.
        """
        inputs = list(node.inputs)
        for place, name in enumerate(inputs):
            held = place >= first and name in self._graph.constants
            if held and not self._graph.is_weight(name):
                array = self._graph.constants[name]
                inputs[place] = self.edits.constant(f"{node.output}/{place}", array, resident=True)
        return node.replaced(inputs)

    def _windows(self, node: Node, kernel: Shape) -> WindowPixels | None:
        """Return the windows of a convolution that is faster as a product, else None."""
        given = node.attributes
        if node.operator != Op.MicrosoftQLinearConv or not given.get("channels_last", 0):
            return None
        before, after = (self._graph.array(name).shape for name in (node.inputs[0], node.output))
        pixels, inputs = math.prod(after[:-1]), math.prod(kernel[1:])
        few = pixels < _PIXELS_A_WEIGHT * inputs and pixels * inputs <= _MOST_WINDOWS_BYTES
        if len(before) != _IMAGE_RANK or not few:
            return None
        windows = pixels_of(windows_of(given, kernel[2:], before[1:-1]), before[0])
        return windows if _INDEX_PART * windows.pixels.nbytes <= math.prod(kernel) else None

    def _product(self, node: Node, kernel: Weight, windows: WindowPixels) -> None:
        """Compute ``node`` as the windows of its input times its weights."""
        name, features = node.output, kernel.shape[0]
        result = self._graph.values[name]
        n_rows, n_weights = math.prod(result.shape[:-1]), kernel.size // features
        gathered = self._gathered(node, windows)
        rows = self._reshaped(gathered, f"{name}/windows", (n_rows, n_weights))
        product = self.edits.value(f"{name}/rows", result.dtype, (n_rows, features))
        _, *quantised, scale, zero_point = node.inputs[:8]
        bias = node.inputs[8] if len(node.inputs) > 8 else ""
        gemm = self._graph.node(
            Op.QGemm,
            [rows, *quantised, bias, scale, zero_point],
            [product],
            node.name,
        )
        matrix = kernel.transpose(2, 3, 1, 0).reshape(n_weights, features)
        form = _form_of(Op.QGemm)
        assert form is not None
        self._parts(gemm, form, matrix)
        self._reshape(product, name, result.shape)

    def _gathered(self, node: Node, windows: WindowPixels) -> str:
        """Return the pixels of all windows of what ``node`` reads."""
        source, _, zero_point, *_ = node.inputs
        array, title = self._graph.array(source), node.output
        channels = array.shape[-1]
        count = math.prod(array.shape[:-1])
        pixels = self._reshaped(source, f"{title}/pixels", (count, channels))
        if windows.outside:
            before = pixels
            pixels = self.edits.value(f"{title}/padded", array.dtype, (count + 1, channels))
            widths = self.edits.constant(f"{title}/widths", np.array([0, 0, 1, 0], np.int64))
            pad = self._graph.node(Op.Pad, [before, widths, zero_point], [pixels])
            self._nodes.append(self._with_scales(pad, 2))
        if not windows.plain:
            before = pixels
            pixels = self.edits.value(
                f"{title}/found", array.dtype, (len(windows.pixels), channels)
            )
            index = self.edits.constant(f"{title}/index", windows.pixels, streamed=True)
            self._nodes.append(
                self._graph.node(Op.Gather, [before, index], [pixels], name=f"{node.label}/windows")
            )
        return pixels

    def _parts(self, node: Node, form: _Form, weight: Weight) -> None:
        """Compute ``node``, whose weights are ``weight`` now, in parts of its output channels."""
        name, total = node.output, weight.shape[form.axis]
        result = self.edits.array(name)
        axis = form.result % len(result.shape)
        bounds = [*range(0, total, self._channels(weight.nbytes, total)), total]
        part_nodes = []
        for number, (first, end) in enumerate(itertools.pairwise(bounds)):
            part, inputs = node, list(node.inputs)
            if len(bounds) > _WHOLE:
                title = f"{node.label}/{number}"
                shape = (*result.shape[:axis], end - first, *result.shape[axis + 1 :])
                part = node.replaced(
                    outputs=[self.edits.value(title, result.dtype, shape)], name=title
                )
            for place in (form.weight, *form.vectors):
                if place < len(inputs) and inputs[place]:
                    is_weight = place == form.weight
                    given = weight if is_weight else self._graph.constants[inputs[place]]
                    along = form.axis if is_weight else 0
                    own = _slice(given, along, first, end, total)
                    inputs[place] = self._own(part, place, own)
            for place, item in enumerate(node.inputs):
                if inputs[place] == item and item in self._graph.constants:
                    inputs[place] = self._own(part, place, self._graph.constants[item])
            part_nodes.append(part.replaced(inputs))
        self._nodes.extend(part_nodes)
        if len(part_nodes) > 1:
            names = [part.output for part in part_nodes]
            title = f"{node.label}/joined"
            self._nodes.append(self._graph.node(Op.Concat, names, [name], name=title, axis=axis))

    def _channels(self, weight_bytes: int, total: int) -> int:
        """Return how many output channels a part has."""
        fitting = self._part_bytes * total // weight_bytes // _COLUMNS_AT_ONCE * _COLUMNS_AT_ONCE
        count = -(-total // max(fitting, _COLUMNS_AT_ONCE))
        return -(-total // count // _COLUMNS_AT_ONCE) * _COLUMNS_AT_ONCE

    def _own(self, node: Node, place: int, array: Weight) -> str:
        """Return a constant of ``node`` alone, which is streamed with it."""
        return self.edits.constant(f"{node.output}/{place}", array, streamed=True)

    def _reshaped(self, name: str, result: str, shape: Shape) -> str:
        made = self.edits.value(result, self.edits.array(name).dtype, shape)
        self._reshape(name, made, shape)
        return made

    def _reshape(self, name: str, result: str, shape: Shape) -> None:
        given = self.edits.constant(f"{result}/shape", np.array(shape, np.int64))
        self._nodes.append(self._graph.node(Op.Reshape, [name, given], [result]))


def _slice(array: Weight, axis: int, first: int, end: int, total: int) -> Weight:
    """Return output channels [first, end) of ``array``, or all of it where it is one number for all."""
    if array.ndim == 0 or array.shape[axis] != total:
        return array
    return array[(slice(None),) * axis + (slice(first, end),)]
