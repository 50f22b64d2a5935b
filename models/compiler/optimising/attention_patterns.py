"""Which nodes are an attention: the spellings of exporters, and ONNX's Attention."""

import math
from typing import NamedTuple

import numpy as np

from models.graphs.rewriter import Rewriter
from models.network.activations import Arithmetic
from models.network.catalogue import traits_of
from models.network.names import Op
from models.network.node import Node

_RANKS = (3, 4)
#: What is added to a score so that it counts for nothing, whatever it is.
_MASKED = -1e30
# Of a mask that is_causal stands for.
_MAX_MASK_BYTES = 4 << 20
#: Attributes with which ONNX's Attention is MultiHeadAttention, but for those of heads and scale.
_DEFAULTS = {"softcap": 0.0, "qk_matmul_output_mode": 0, "softmax_precision": 1}
_HEADS_AND_SCALE = {"scale", "q_num_heads", "kv_num_heads", "is_causal"}
_Q, _K, _V, _MASK = range(4)


class AttentionMatch(NamedTuple):
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
    guard: str


_SCALING: tuple[Arithmetic, ...] = ("multiply", "divide")
_PASSED: tuple[Arithmetic, ...] = (*_SCALING, "add")


def _function(node: Node) -> str | None:
    return traits_of(node.operator).function


class AttentionPatterns(Rewriter):
    """A pass that knows which nodes end an attention."""

    def matched(self, node: Node) -> AttentionMatch | None:
        """Return the attention that ends with ``node``; None: there is none."""
        return self._attention(node) if node.operator == Op.Attention else self._product(node)

    def _product(self, node: Node) -> AttentionMatch | None:
        """Return the attention whose last product is ``node``."""
        if node.operator != Op.MatMul or len(self.shape(node.output)) not in _RANKS:
            return None
        weights, values = node.inputs
        producer, guard = self._sole_producer(Op.Where, weights), ""
        if producer is not None:
            condition, guard, weights = producer.inputs
            test = self._sole_producer(Op.IsNaN, condition)
            if test is None or test.inputs[0] != weights or not self._is_number(guard, 0.0):
                return None
        softmax = self._sole_producer(Op.Softmax, weights, 1 + bool(guard))
        if softmax is None or softmax.attributes.get("axis", -1) not in (
            -1,
            len(self.shape(weights)) - 1,
        ):
            return None
        scores, masks = self._unmasked(softmax.inputs[0])
        scale, product = self._unscaled(scores)
        first = self._sole_producer(Op.MatMul, product)
        if first is None or len(self.shape(product)) != len(self.shape(node.output)):
            return None
        queries, keys = first.inputs
        return AttentionMatch(queries, keys, values, True, scale, masks, guard)

    def _attention(self, node: Node) -> AttentionMatch | None:
        """Return what an Attention of ONNX computes, if it is one without a cache and without groups."""
        attributes = node.attributes
        read = [*node.inputs, *[""] * (_MASK + 1)][: _MASK + 1]
        others = {name: value for name, value in attributes.items() if name not in _HEADS_AND_SCALE}
        shapes = [self.shape(name) for name in read[:_MASK]]
        if len(node.made) != 1 or any(node.inputs[_MASK + 1 :]):
            return None
        if any(_DEFAULTS.get(name) != value for name, value in others.items()):
            return None
        if {len(shape) for shape in shapes} not in ({3}, {4}):
            return None
        flat = len(shapes[_Q]) == 3
        heads = attributes.get("q_num_heads", 0) if flat else shapes[_Q][1]
        other = attributes.get("kv_num_heads", 0) if flat else shapes[_K][1]
        if not heads or heads != other or any(shape[-1] % heads for shape in shapes if flat):
            return None
        head = shapes[_Q][-1] // (heads if flat else 1)
        scale = float(attributes.get("scale", 1 / math.sqrt(head)))
        masks = tuple(filter(None, [read[_MASK]]))
        if attributes.get("is_causal", 0):
            tokens = {shape[-2] for shape in shapes}
            if masks or len(tokens) != 1 or 4 * max(tokens) ** 2 > _MAX_MASK_BYTES:
                return None
            masks = (self._causal(node, *tokens),)
        queries, keys, values, _ = read
        # Where a mask leaves a query nothing this operator makes zeros.
        guard = self.constant(f"{node.output}/zero", np.array(0, np.float32)) if read[_MASK] else ""
        return AttentionMatch(queries, keys, values, False, scale, masks, guard)

    def _causal(self, node: Node, tokens: int) -> str:
        mask = np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)
        return self.constant(f"{node.output}/causal", mask)

    def _sole_producer(self, operator: Op, name: str, uses: int = 1) -> Node | None:
        """Return what makes ``name`` if it is ``operator`` and nothing else reads it than ``uses`` say."""
        producer = self.makers.get(name)
        if producer is None or producer.operator != operator or self.uses[name] != uses:
            return None
        return producer

    def _is_number(self, name: str, factor: float) -> bool:
        return self.is_single(name) and float(self.constants[name].item()) == factor

    def _unmasked(self, name: str) -> tuple[str, tuple[str, ...]]:
        """Return the scores that are ``name`` before masks, and these: what is added or chooses."""
        masks: list[str] = []
        while True:
            added, chosen = self._sole_producer(Op.Add, name), self._sole_producer(Op.Where, name)
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
            producer = self.makers[side]
            if producer.operator == Op.MatMul:
                return True
            if producer.operator != Op.Where and _function(producer) not in _PASSED:
                return False
            full = [name for name in producer.inputs if self.shape(name) == self.shape(result)]
            if len(full) != 1:
                return False
            side = full[0]
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
        if node is None or _function(node) not in _SCALING:
            return None
        first, second = node.inputs
        if node.operator == Op.Mul and self.is_single(first):
            first, second = second, first
        if not self.is_single(second) or first in self.constants or not self.shape(first):
            return None
        factor = float(self.constants[second].item())
        if len(self.shape(first)) != len(self.shape(node.output)) or not factor:
            return None
        return (factor if node.operator == Op.Mul else 1 / factor), first
