"""Attention, in whatever operators it is written, as the one that computes it.

Exporters write it as MatMul, Softmax and MatMul, with the scale on either side of the first product or
behind it, with a mask that is added or chooses, and with a NaN that becomes zero; or as ONNX's Attention.
All become MultiHeadAttention, whose queries, keys and values are tokens [images, tokens, heads * head] as
dense layers make them: no tensor of scores, none whose axes are exchanged.

Which axes reshapes and transposes exchange is not read of them: they are tried on numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from models.compiler.optimising.attention_patterns import AttentionMatch, AttentionPatterns
from models.graphs.graph import Graph
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import MICROSOFT, Op
from models.network.node import Node

_BY_HEADS = [0, 2, 1, 3]
# From here on Softmax is of one axis, and Reshape and Expand take lengths as inputs.
_OPSET = 13
_LOWEST = float(np.finfo(np.float32).min)
# Numbers that reshapes and transposes are tried on.
_MAX_TRIED = 1 << 24


@dataclass(frozen=True)
class _Form:
    """How axes of operands are read: [images, heads, tokens, head] for all of them."""

    images: int
    heads: int


class FindAttention(AttentionPatterns):
    """Makes each attention a MultiHeadAttention."""

    def __init__(self, graph: Graph) -> None:
        self._source = graph
        opsets = {**graph.opsets, MICROSOFT: graph.opsets.get(MICROSOFT, 1)}
        super().__init__(replace(graph, opsets=opsets))
        # By a value with its heads apart: the tokens that it is made of.
        self._tokens: dict[str, str] = {}
        self._expanded: dict[tuple[str, tuple[int, ...]], str] = {}

    def run(self) -> Graph:
        before = self.graph.nodes
        result = super().run()
        return self._source if result.nodes is before else result

    def replaced(self, node: Node) -> list[Node] | None:
        if self.opsets.get("", 0) < _OPSET:
            return None
        if node.operator == Op.Transpose and node.inputs[0] in self._tokens:
            return self._in_tokens(node)
        if node.operator == Op.Reshape and node.inputs[0] in self._tokens:
            self._note_same(node)
        if node.operator == Op.MultiHeadAttention:
            return self._with_scale(node)
        match = self.matched(node)
        return None if match is None else self._written(node, match)

    # How it is written.

    def _written(self, node: Node, match: AttentionMatch) -> list[Node] | None:
        """Return nodes that make what ``node`` makes; None: its tensors have no such form."""
        tensors = [self.values.get(name) for name in (match.queries, match.keys, match.values)]
        result = self.values.get(node.output)
        if result is None or any(one is None or one.dtype != "float32" for one in tensors):
            return None
        shapes = [self.shape(name) for name in (match.queries, match.keys, match.values)]
        if node.operator == Op.Attention and len(result.shape) == 3:
            heads = node.attributes["q_num_heads"]
            return self._node(node, match, _Form(result.shape[0], heads), match[:3], match.scale)
        *outer, _, _ = result.shape
        form = _Form(*outer) if len(outer) > 1 else _Form(1, outer[0])
        if not _agree(shapes, match.are_turned, result.shape):
            return None
        nodes, flat, scale = list[Node](), list[str](), match.scale
        for name, turned in zip(match[:3], (False, match.are_turned, False), strict=True):
            factor, tokens = self._tokens_of(name, form, turned)
            flat.append(self._flattened(tokens, name, form, turned, nodes))
            scale *= factor
        written = self._node(node, match, form, flat, scale)
        return None if written is None else [*nodes, *written]

    def _tokens_of(self, name: str, form: _Form, is_turned: bool) -> tuple[float, str]:
        """Return what has the numbers of ``name`` in the order [images, tokens, heads, head], and a factor.

        The factor is what these are multiplied by. "": nothing has them in this order.
        """
        path, factor, best = list[Node](), 1.0, (1.0, "")
        source = name
        size = math.prod(self.shape(name))
        if size > _MAX_TRIED:
            return 1.0, ""
        expected = _in_heads(size, self.shape(name), form, is_turned)
        while True:
            if np.array_equal(self._moved(source, path, size), expected):
                best = factor, source
            producer = self.makers.get(source)
            scaling = self._scaling(producer)
            if scaling is not None:
                factor, source = factor * scaling[0], scaling[1]
            elif producer is not None and self._moves(producer):
                path.insert(0, producer)
                source = producer.inputs[0]
            else:
                return best

    def _moves(self, node: Node) -> bool:
        is_static = node.inputs[0] in self.values and node.output in self.values
        return is_static and (node.operator == Op.Transpose or traits_of(node.operator).reshapes)

    def _moved(self, name: str, path: Sequence[Node], size: int) -> NDArray[np.int32]:
        """Return where the numbers of ``name`` come from once ``path`` has moved them."""
        order = np.arange(size, dtype=np.int32).reshape(self.shape(name))
        for node in path:
            if node.operator == Op.Transpose:
                order = order.transpose(node.attributes.get("perm"))
            order = order.reshape(self.shape(node.output))
        return order

    def _flattened(
        self, tokens: str, name: str, form: _Form, is_turned: bool, nodes: list[Node]
    ) -> str:
        """Return [images, tokens, heads * head] of ``tokens``, or where that is "" of ``name``."""
        shape = self.shape(name)
        length, head = (shape[-1], shape[-2]) if is_turned else shape[-2:]
        if not tokens:
            by_head = (form.images, form.heads, *shape[-2:])
            separate, tokens = self.fresh(f"{name}/heads"), self.fresh(f"{name}/tokens")
            self._know(separate, by_head)
            self._know(tokens, (form.images, length, form.heads, head))
            nodes.append(self.reshape(name, separate, by_head))
            perm = [0, 3, 1, 2] if is_turned else _BY_HEADS
            nodes.append(self.node(Op.Transpose, [separate], [tokens], perm=perm))
        flat, lengths = self.fresh(f"{name}/flat"), (form.images, length, form.heads * head)
        if self.shape(tokens) == lengths:
            return tokens
        self._know(flat, lengths)
        nodes.append(self.reshape(tokens, flat, lengths))
        return flat

    def _know(self, name: str, shape: Sequence[int]) -> None:
        self.values[name] = Array(dtype="float32", shape=tuple(shape))

    def _node(
        self, node: Node, match: AttentionMatch, form: _Form, flat: Sequence[str], scale: float
    ) -> list[Node] | None:
        """Return the MultiHeadAttention of tokens ``flat``, and what makes its result that of ``node``."""
        queries, keys, values = map(self.shape, flat)
        if not scale or not math.isfinite(scale) or queries[2] != keys[2]:
            return None
        lengths = (form.images, form.heads, queries[1], keys[1])
        nodes: list[Node] = []
        bias = self._bias(node, match.masks, lengths, nodes)
        if bias is None:
            return None
        output = self.fresh(f"{node.output}/tokens")
        self._know(output, (form.images, queries[1], values[2]))
        inputs = [*flat, *(["", "", bias] if bias else [])]
        nodes.append(
            self.node(
                *(Op.MultiHeadAttention, inputs, [output], node.name),
                num_heads=form.heads,
                scale=scale,
            )
        )
        if match.guard:
            output = self._guarded(output, nodes)
        result = self.shape(node.output)
        if form.heads == 1 or result == self.shape(output):
            return [*nodes, self.reshape(output, node.output, result)]
        separate = self.fresh(f"{node.output}/apart")
        split = (form.images, queries[1], form.heads, values[2] // form.heads)
        self._know(separate, split)
        heads = self.fresh(f"{node.output}/heads")
        self._know(heads, (split[0], split[2], split[1], split[3]))
        if len(result) == len(_BY_HEADS):
            self._tokens[node.output] = output
        return [
            *nodes,
            self.reshape(output, separate, split),
            self.node(Op.Transpose, [separate], [heads], perm=_BY_HEADS),
            self.reshape(heads, node.output, result),
        ]

    def _guarded(self, name: str, nodes: list[Node]) -> str:
        """Return ``name`` with zero where it is NaN: where a mask leaves a query nothing.

        NaN is no number above the threshold. IsNaN and Where make three more tensors, one operator none;
        it makes the lowest numbers zero, too, and what is computed of these is no number either.
        """
        result = self.fresh(f"{name}/guarded")
        self._know(result, self.shape(name))
        nodes.append(self.node(Op.ThresholdedRelu, [name], [result], alpha=_LOWEST))
        return result

    def _bias(
        self, node: Node, masks: Sequence[str], lengths: Sequence[int], nodes: list[Node]
    ) -> str | None:
        """Return what ``masks`` add to scores of ``lengths``; "": there are none. None: no bias is that."""
        masks = [mask for mask in masks if not self._is_zero(mask)]
        added = [self._added(mask, nodes) for mask in masks]
        shapes = [self._four(mask, lengths) if mask else None for mask in added]
        if any(shape is None for shape in shapes):
            return None
        names = []
        for mask, shape in zip(added, shapes, strict=True):
            assert mask is not None
            assert shape is not None
            names.append(self._as_bias(mask, shape, lengths, nodes))
        if len(names) > 1:
            both = np.broadcast_shapes(*(self._shape_of(name) for name in names))
            for name in names[1:]:
                total_mask = self.fresh(f"{node.output}/mask")
                self._know(total_mask, both)
                nodes.append(self.node(Op.Add, [names[0], name], [total_mask]))
                names[0] = total_mask
        return names[0] if names else ""

    def _is_zero(self, mask: str) -> bool:
        """Return whether ``mask`` adds nothing: exporters write one where nothing is hidden."""
        constant = self.constants.get(mask)
        return constant is not None and constant.dtype == np.float32 and not constant.any()

    def _added(self, mask: str, nodes: list[Node]) -> str | None:
        """Return what is added for ``mask``: itself, or numbers where it is a condition."""
        producer = self.makers.get(mask)
        array = self.array(mask)
        if array is None:
            return None
        if producer is not None and producer.operator == Op.Where and self._hides(producer):
            condition, *sides = producer.inputs
            order = [
                name
                if self.is_single(name)
                else self.constant(f"{mask}/none", np.array(0, np.float32))
                for name in sides
            ]
        elif array.dtype == "bool":
            hidden = np.array(-np.inf, np.float32)
            condition = mask
            order = [
                self.constant(f"{mask}/none", np.array(0, np.float32)),
                self.constant(f"{mask}/hidden", hidden),
            ]
        else:
            return mask if array.dtype == "float32" else None
        result, array = self.fresh(f"{mask}/added"), self.array(condition)
        if array is None:
            return None
        self._know(result, array.shape)
        nodes.append(self.node(Op.Where, [condition, *order], [result]))
        return result

    def _hides(self, node: Node) -> bool:
        """Return whether ``node`` chooses between scores and a number, and is no mask that is added."""
        return self._is_choice(node, node.output) and any(
            self._is_score(name, node.output) for name in node.inputs[1:]
        )

    def _shape_of(self, name: str) -> tuple[int, ...]:
        array = self.array(name)
        return () if array is None else array.shape

    def _four(self, mask: str, lengths: Sequence[int]) -> tuple[int, ...] | None:
        """Return the shape of ``mask`` with all four axes of scores; None: it has others."""
        shape = self._shape_of(mask)
        images, heads, *plane = lengths
        if len(shape) == 3 and heads == 1 and images != 1:  # heads are images
            shape = (shape[0], 1, *shape[1:])
        if len(shape) == 4 and heads == 1 and shape[0] * shape[1] in (1, images):
            shape = (shape[0] * shape[1], 1, *shape[2:])
        shape = (*[1] * (4 - len(shape)), *shape)
        if len(shape) != 4 or any(
            one not in (1, all_) for one, all_ in zip(shape, lengths, strict=True)
        ):
            return None
        return (*shape[:2], *plane) if tuple(shape[2:]) != tuple(plane) else shape

    def _as_bias(
        self, mask: str, shape: tuple[int, ...], lengths: Sequence[int], nodes: list[Node]
    ) -> str:
        """Return ``mask`` with ``shape``: all queries and keys, images and heads or 1 of them."""
        shape_before = self._shape_of(mask)
        if shape_before == shape:
            return mask
        if (mask, shape) in self._expanded:
            return self._expanded[mask, shape]
        result = self.fresh(f"{mask}/bias")
        self._know(result, shape)
        if math.prod(shape_before) == math.prod(shape):
            nodes.append(self.reshape(mask, result, shape))
        else:
            lengths_name = self.constant(f"{result}/lengths", np.array(shape, np.int64))
            nodes.append(self.node(Op.Expand, [mask, lengths_name], [result]))
        self._expanded[mask, shape] = result
        return result

    # Around it.

    def _in_tokens(self, node: Node) -> list[Node] | None:
        """Return what makes the transposed heads of an attention of its tokens, where they lie."""
        tokens, result = self._tokens[node.inputs[0]], self.shape(node.output)
        if node.attributes.get("perm") != _BY_HEADS or not result:
            return None
        return [self.reshape(tokens, node.output, result)]

    def _note_same(self, node: Node) -> None:
        """Note the tokens of heads that ``node`` gives another name and no other shape."""
        if self.shape(node.output) == self.shape(node.inputs[0]):
            self._tokens[node.output] = self._tokens[node.inputs[0]]

    def _with_scale(self, node: Node) -> list[Node] | None:
        """Return a MultiHeadAttention that says its scale."""
        heads, shape = node.attributes.get("num_heads", 0), self.shape(node.inputs[0])
        if "scale" in node.attributes or not heads or len(shape) != 3:
            return None
        return [node.with_attributes(scale=1 / math.sqrt(shape[2] // heads))]


def _agree(shapes: Sequence[tuple[int, ...]], are_turned: bool, result: Sequence[int]) -> bool:
    """Return whether queries, keys and values fit, each with images and heads of their own."""
    queries, keys, values = shapes
    if are_turned:
        keys = (*keys[:-2], keys[-1], keys[-2])
    return (
        all(shape[:-2] == tuple(result[:-2]) for shape in shapes)
        and queries[-1] == keys[-1]
        and keys[-2] == values[-2]
        and (queries[-2], values[-1]) == tuple(result[-2:])
    )


def _in_heads(size: int, shape: Sequence[int], form: _Form, is_turned: bool) -> NDArray[np.int32]:
    """Return where in [images, tokens, heads, head] the numbers of an operand of ``shape`` lie."""
    length, head = (shape[-1], shape[-2]) if is_turned else shape[-2:]
    order = np.arange(size, dtype=np.int32).reshape(form.images, length, form.heads, head)
    return order.transpose([0, 2, 3, 1] if is_turned else _BY_HEADS).reshape(shape)
