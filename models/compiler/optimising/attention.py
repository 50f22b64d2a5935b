"""Attention, in whatever operators it is written, as the one that computes it.

Exporters write it as MatMul, Softmax and MatMul, with the scale on either side of the first product or behind
it, with a mask that is added or chooses, and with a NaN that becomes zero; or as ONNX's Attention. All of
them become MultiHeadAttention, whose queries, keys and values are tokens [images, tokens, heads * head] as
dense layers make them: no tensor of scores, none whose axes are exchanged.

Which axes reshapes and transposes exchange is not read of them: they are tried on numbers.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.graphs.graph import Graph
from models.graphs.rewriter import Rewriter
from models.network.catalogue import traits_of
from models.network.fields import Array
from models.network.names import MICROSOFT, Op
from models.network.node import Node

_RANKS = (3, 4)
_BY_HEADS = [0, 2, 1, 3]
# From here on Softmax is of one axis, and Reshape and Expand take lengths as inputs.
_OPSET = 13
#: What is added to a score so that it counts for nothing, whatever it is.
_MASKED = -1e30
# Of a mask that is_causal stands for.
_MAX_MASK_BYTES = 4 << 20
# Numbers that reshapes and transposes are tried on.
_MAX_TRIED = 1 << 24
#: Attributes of ONNX's Attention with which it is MultiHeadAttention, but for those that say heads and scale.
_DEFAULTS = {"softcap": 0.0, "qk_matmul_output_mode": 0, "softmax_precision": 1}
_OWN = {"scale", "q_num_heads", "kv_num_heads", "is_causal"}
_Q, _K, _V, _MASK = range(4)


class Found(NamedTuple):
    """softmax(scale * queries keys + masks) values, of each of ``heads`` [images, heads, tokens, head].

    ``keys`` have the axes of the products, with tokens last, if ``are_turned``. ``masks`` are added, in
    order. ``guard``: NaN becomes this constant; "": it stays.
    """

    queries: str
    keys: str
    values: str
    are_turned: bool
    scale: float
    masks: tuple[str, ...]
    nodes: tuple[Node, ...]
    guard: str


@dataclass(frozen=True)
class _Form:
    """How axes of operands are read: [images, heads, tokens, head] for all of them."""

    images: int
    heads: int


class FindAttention(Rewriter):
    """Makes each attention a MultiHeadAttention."""

    def __init__(self, graph: Graph) -> None:
        opsets = {**graph.opsets, MICROSOFT: graph.opsets.get(MICROSOFT, 1)}
        super().__init__(replace(graph, opsets=opsets))
        # By a value with its heads apart: the tokens that it is made of.
        self._tokens: dict[str, str] = {}
        self._expanded: dict[tuple[str, tuple[int, ...]], str] = {}

    def replaced(self, node: Node) -> list[Node] | None:
        if self.opsets.get("", 0) < _OPSET:
            return None
        if node.operator == Op.Transpose and node.inputs[0] in self._tokens:
            return self._in_tokens(node)
        if node.operator == Op.MultiHeadAttention:
            return self._with_scale(node)
        found = self._attention(node) if node.operator == Op.Attention else self._product(node)
        return None if found is None else self._written(node, found)

    # What is attention.

    def _product(self, node: Node) -> Found | None:
        """Return the attention whose last product is ``node``."""
        if node.operator != Op.MatMul or len(self.shape(node.output)) not in _RANKS:
            return None
        weights, values = node.inputs
        maker, guard = self._made_by(Op.Where, weights), ""
        nodes: list[Node] = []
        if maker is not None:
            condition, guard, weights = maker.inputs
            test = self._made_by(Op.IsNaN, condition)
            if test is None or test.inputs[0] != weights or not self._is_number(guard, 0.0):
                return None
            nodes += [maker, test]
        softmax = self._made_by(Op.Softmax, weights, 1 + bool(guard))
        if softmax is None or softmax.attributes.get("axis", -1) not in (
            -1,
            len(self.shape(weights)) - 1,
        ):
            return None
        scores, masks = self._unmasked(softmax.inputs[0])
        scale, product = self._unscaled(scores)
        first = self._made_by(Op.MatMul, product)
        if first is None or len(self.shape(product)) != len(self.shape(node.output)):
            return None
        queries, keys = first.inputs
        return Found(queries, keys, values, True, scale, masks, (*nodes, softmax, first), guard)

    def _attention(self, node: Node) -> Found | None:
        """Return what an Attention of ONNX computes, if it is one without a cache and without groups."""
        given = node.attributes
        read = [*node.inputs, *[""] * (_MASK + 1)][: _MASK + 1]
        others = {name: value for name, value in given.items() if name not in _OWN}
        shapes = [self.shape(name) for name in read[:_MASK]]
        if len(node.made) != 1 or any(node.inputs[_MASK + 1 :]):
            return None
        if any(_DEFAULTS.get(name) != value for name, value in others.items()):
            return None
        if {len(shape) for shape in shapes} not in ({3}, {4}):
            return None
        flat = len(shapes[_Q]) == 3
        heads = given.get("q_num_heads", 0) if flat else shapes[_Q][1]
        other = given.get("kv_num_heads", 0) if flat else shapes[_K][1]
        if not heads or heads != other or any(shape[-1] % heads for shape in shapes if flat):
            return None
        head = shapes[_Q][-1] // (heads if flat else 1)
        scale = float(given.get("scale", 1 / math.sqrt(head)))
        masks = tuple(filter(None, [read[_MASK]]))
        if given.get("is_causal", 0):
            tokens = {shape[-2] for shape in shapes}
            if masks or len(tokens) != 1 or 4 * max(tokens) ** 2 > _MAX_MASK_BYTES:
                return None
            masks = (self._causal(node, *tokens),)
        return Found(*read[:_MASK], False, scale, masks, (), "")

    def _causal(self, node: Node, tokens: int) -> str:
        mask = np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)
        return self.constant(f"{node.output}/causal", mask)

    def _made_by(self, operator: Op, name: str, uses: int = 1) -> Node | None:
        """Return what makes ``name`` if it is ``operator`` and nothing else reads it than ``uses`` say."""
        maker = self.makers.get(name)
        if maker is None or maker.operator != operator or self.uses[name] != uses:
            return None
        return maker

    def _is_number(self, name: str, number: float) -> bool:
        return self.is_single(name) and float(self.constants[name].item()) == number

    def _unmasked(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Return the scores that are ``name`` before masks, and these: what is added or chooses."""
        masks: list[str] = []
        while True:
            added, chosen = self._made_by(Op.Add, name), self._made_by(Op.Where, name)
            if added is not None:
                sides = [side for side in added.inputs if self._is_score(side, name)]
                if len(sides) != 1:
                    break
                (mask,) = (side for side in added.inputs if side != sides[0])
                name = sides[0]
            elif chosen is not None and self._is_choice(chosen, name):
                mask = chosen.output  # _mask makes what is added of the node
                name = next(side for side in chosen.inputs[1:] if not self.is_single(side))
            else:
                break
            masks.insert(0, mask)
        return name, tuple(masks)

    def _is_score(self, side: str, result: str) -> bool:
        """Return whether ``side`` of a sum is what products make, before other masks and scales."""
        while side in self.makers and self.shape(side) == self.shape(result):
            maker = self.makers[side]
            if maker.operator == Op.MatMul:
                return True
            if maker.operator not in (Op.Mul, Op.Div, Op.Add, Op.Where):
                return False
            whole = [name for name in maker.inputs if self.shape(name) == self.shape(result)]
            if len(whole) != 1:
                return False
            side = whole[0]
        return False

    def _is_choice(self, node: Node, result: str) -> bool:
        """Return whether ``node`` chooses between scores and a number that hides them."""
        single = [name for name in node.inputs[1:] if self.is_single(name)]
        if len(single) != 1 or not float(self.constants[single[0]].item()) <= _MASKED:
            return False
        (scores,) = (name for name in node.inputs[1:] if name != single[0])
        return self.shape(scores) == self.shape(result)

    def _unscaled(self, name: str) -> tuple[float, str]:
        """Return what ``name`` is a multiple of, and by which number."""
        scale = 1.0
        while self.uses[name] == 1 and (step := self._scaling(self.makers.get(name))):
            factor, name = step
            scale *= factor
        return scale, name

    def _scaling(self, node: Node | None) -> tuple[float, str] | None:
        """Return by which number ``node`` multiplies, and what; None: it is no multiplication."""
        if node is None or node.operator not in (Op.Mul, Op.Div):
            return None
        first, second = node.inputs
        if node.operator == Op.Mul and self.is_single(first):
            first, second = second, first
        if not self.is_single(second) or first in self.constants or not self.shape(first):
            return None
        number = float(self.constants[second].item())
        if len(self.shape(first)) != len(self.shape(node.output)) or not number:
            return None
        return (number if node.operator == Op.Mul else 1 / number), first

    # How it is written.

    def _written(self, node: Node, found: Found) -> list[Node] | None:
        """Return nodes that make what ``node`` makes; None: its tensors have no such form."""
        tensors = [self.values.get(name) for name in (found.queries, found.keys, found.values)]
        result = self.values.get(node.output)
        if result is None or any(one is None or one.dtype != "float32" for one in tensors):
            return None
        shapes = [self.shape(name) for name in (found.queries, found.keys, found.values)]
        if node.operator == Op.Attention and len(result.shape) == 3:
            heads = node.attributes["q_num_heads"]
            return self._node(node, found, _Form(result.shape[0], heads), found[:3], found.scale)
        *outer, _, _ = result.shape
        form = _Form(*outer) if len(outer) > 1 else _Form(1, outer[0])
        if not _agree(shapes, found.are_turned, result.shape):
            return None
        nodes, flat, scale = list[Node](), list[str](), found.scale
        for name, turned in zip(found[:3], (False, found.are_turned, False), strict=True):
            factor, tokens = self._tokens_of(name, form, turned)
            flat.append(self._flattened(tokens, name, form, turned, nodes))
            scale *= factor
        written = self._node(node, found, form, flat, scale)
        return None if written is None else [*nodes, *written]

    def _tokens_of(self, name: str, form: _Form, is_turned: bool) -> tuple[float, str]:
        """Return what has the numbers of ``name`` in the order [images, tokens, heads, head], and a factor.

        The factor is what these are multiplied by. "": nothing has them in this order.
        """
        path, factor, best = [], 1.0, (1.0, "")
        at = name
        size = math.prod(self.shape(name))
        if size > _MAX_TRIED:
            return 1.0, ""
        expected = _in_heads(size, self.shape(name), form, is_turned)
        while True:
            if np.array_equal(self._moved(at, path, size), expected):
                best = factor, at
            maker = self.makers.get(at)
            scaling = self._scaling(maker)
            if scaling is not None:
                factor, at = factor * scaling[0], scaling[1]
            elif maker is not None and self._moves(maker):
                path.insert(0, maker)
                at = maker.inputs[0]
            else:
                return best

    def _moves(self, node: Node) -> bool:
        is_known = node.inputs[0] in self.values and node.output in self.values
        return is_known and (node.operator == Op.Transpose or traits_of(node.operator).reshapes)

    def _moved(self, name: str, path: Sequence[Node], size: int) -> NDArray[np.int32]:
        """Return where the numbers of ``name`` come from once ``path`` has moved them."""
        numbers = np.arange(size, dtype=np.int32).reshape(self.shape(name))
        for node in path:
            if node.operator == Op.Transpose:
                numbers = numbers.transpose(node.attributes.get("perm"))
            numbers = numbers.reshape(self.shape(node.output))
        return numbers

    def _flattened(
        self, tokens: str, name: str, form: _Form, is_turned: bool, nodes: list[Node]
    ) -> str:
        """Return [images, tokens, heads * head] of ``tokens``, or where that is "" of ``name``."""
        shape = self.shape(name)
        length, head = (shape[-1], shape[-2]) if is_turned else shape[-2:]
        if not tokens:
            whole = (form.images, form.heads, *shape[-2:])
            apart, tokens = self.fresh(f"{name}/heads"), self.fresh(f"{name}/tokens")
            self._know(apart, whole)
            self._know(tokens, (form.images, length, form.heads, head))
            nodes.append(self.reshape(name, apart, whole))
            perm = [0, 3, 1, 2] if is_turned else _BY_HEADS
            nodes.append(self.node(Op.Transpose, [apart], [tokens], perm=perm))
        flat, lengths = self.fresh(f"{name}/flat"), (form.images, length, form.heads * head)
        if self.shape(tokens) == lengths:
            return tokens
        self._know(flat, lengths)
        nodes.append(self.reshape(tokens, flat, lengths))
        return flat

    def _know(self, name: str, shape: Sequence[int]) -> None:
        self.values[name] = Array(dtype="float32", shape=tuple(shape))

    def _node(
        self, node: Node, found: Found, form: _Form, flat: Sequence[str], scale: float
    ) -> list[Node] | None:
        """Return the MultiHeadAttention of tokens ``flat``, and what makes its result that of ``node``."""
        queries, keys, values = map(self.shape, flat)
        if not scale or not math.isfinite(scale) or queries[2] != keys[2]:
            return None
        lengths = (form.images, form.heads, queries[1], keys[1])
        nodes: list[Node] = []
        bias = self._bias(node, found.masks, lengths, nodes)
        if bias is None:
            return None
        made = self.fresh(f"{node.output}/tokens")
        self._know(made, (form.images, queries[1], values[2]))
        inputs = [*flat, *(["", "", bias] if bias else [])]
        nodes.append(
            self.node(
                *(Op.MultiHeadAttention, inputs, [made], node.name),
                num_heads=form.heads,
                scale=scale,
            )
        )
        if found.guard:
            made = self._guarded(made, found.guard, nodes)
        result = self.shape(node.output)
        if form.heads == 1 or result == self.shape(made):
            return [*nodes, self.reshape(made, node.output, result)]
        apart = self.fresh(f"{node.output}/apart")
        split = (form.images, queries[1], form.heads, values[2] // form.heads)
        self._know(apart, split)
        heads = self.fresh(f"{node.output}/heads")
        self._know(heads, (split[0], split[2], split[1], split[3]))
        if len(result) == len(_BY_HEADS):
            self._tokens[node.output] = made
        return [
            *nodes,
            self.reshape(made, apart, split),
            self.node(Op.Transpose, [apart], [heads], perm=_BY_HEADS),
            self.reshape(heads, node.output, result),
        ]

    def _guarded(self, name: str, guard: str, nodes: list[Node]) -> str:
        """Return ``name`` with ``guard`` where it is NaN: where a mask leaves a query nothing."""
        test, result = self.fresh(f"{name}/nan"), self.fresh(f"{name}/guarded")
        self.values[test] = replace(self.values[name], dtype="bool")
        self._know(result, self.shape(name))
        nodes.append(self.node(Op.IsNaN, [name], [test]))
        nodes.append(self.node(Op.Where, [test, guard, name], [result]))
        return result

    def _bias(
        self, node: Node, masks: Sequence[str], lengths: Sequence[int], nodes: list[Node]
    ) -> str | None:
        """Return what ``masks`` add to scores of ``lengths``; "": there are none. None: no bias is that."""
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
            total = np.broadcast_shapes(*(self._shape_of(name) for name in names))
            for name in names[1:]:
                joined = self.fresh(f"{node.output}/mask")
                self._know(joined, total)
                nodes.append(self.node(Op.Add, [names[0], name], [joined]))
                names[0] = joined
        return names[0] if names else ""

    def _added(self, mask: str, nodes: list[Node]) -> str | None:
        """Return what is added for ``mask``: itself, or numbers where it is a condition."""
        maker = self.makers.get(mask)
        array = self.array(mask)
        if array is None:
            return None
        if maker is not None and maker.operator == Op.Where and self._hides(maker):
            condition, *sides = maker.inputs
            numbers = [
                name
                if self.is_single(name)
                else self.constant(f"{mask}/none", np.array(0, np.float32))
                for name in sides
            ]
        elif array.dtype == "bool":  # as ONNX Runtime's Attention, which never hides all
            lowest = np.array(np.finfo(np.float32).min, np.float32)
            condition = mask
            numbers = [
                self.constant(f"{mask}/none", np.array(0, np.float32)),
                self.constant(f"{mask}/hidden", lowest),
            ]
        else:
            return mask if array.dtype == "float32" else None
        result, known = self.fresh(f"{mask}/added"), self.array(condition)
        if known is None:
            return None
        self._know(result, known.shape)
        nodes.append(self.node(Op.Where, [condition, *numbers], [result]))
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
        own = self._shape_of(mask)
        if own == shape:
            return mask
        if (mask, shape) in self._expanded:
            return self._expanded[mask, shape]
        result = self.fresh(f"{mask}/bias")
        self._know(result, shape)
        if math.prod(own) == math.prod(shape):
            nodes.append(self.reshape(mask, result, shape))
        else:
            given = self.constant(f"{result}/lengths", np.array(shape, np.int64))
            nodes.append(self.node(Op.Expand, [mask, given], [result]))
        self._expanded[mask, shape] = result
        return result

    # Around it.

    def _in_tokens(self, node: Node) -> list[Node] | None:
        """Return what makes the transposed heads of an attention of its tokens, where they lie."""
        tokens, result = self._tokens[node.inputs[0]], self.shape(node.output)
        if node.attributes.get("perm") != _BY_HEADS or not result:
            return None
        return [self.reshape(tokens, node.output, result)]

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
    numbers = np.arange(size, dtype=np.int32).reshape(form.images, length, form.heads, head)
    return numbers.transpose([0, 2, 3, 1] if is_turned else _BY_HEADS).reshape(shape)
