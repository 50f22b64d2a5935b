"""Keep tensors in the blocked layout between convolutions.

ONNX Runtime computes convolutions on channels in blocks (NCHWc), and turns tensors back to NCHW for every
operator that has no blocked kernel: a Mish or a residual addition between two convolutions costs two
reorders. Operators that treat every element alike do not care about the layout, and channels that divide
by the block join and end as they do in NCHW; so these run on the blocked tensor as it is. A gate, the
factor per channel of squeeze-excite, becomes the weights of a convolution of one pixel a channel. A softmax
along channels that are one block has its numbers side by side in that layout. An addition and an activation
behind a convolution become part of it.

Equal results to what ONNX Runtime made: the same operators on the same numbers, but for an addition inside
a convolution, which is rounded once less.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np
import onnx
from onnx import helper, numpy_helper

from models.compiler.analysis.graph import NCHWC_DOMAIN
from models.compiler.optimising.softmax import SOFTMAXES, softmax_is_along_axis
from models.graphs.nodes import attributes, live, reads, replace_nodes
from models.network.activations import SPELLINGS
from models.network.operators.convolution import ACTIVATIONS, ADDEND
from models.network.operators.elements import POINTWISE

Shape = tuple[int, ...]

_DOMAINS = ("", "ai.onnx", "com.microsoft")
_CHANNEL_AXIS = 1


def stay_blocked(model: onnx.ModelProto, shapes: Mapping[str, Shape], block: int) -> None:
    """Rewrite ``model``, which ONNX Runtime optimised, in place.

    ``shapes``: of every value of known size, by name. ``block``: channels in a block; 1 where there is no
    blocked layout.
    """
    if block == 1 or not any(node.op_type == "ReorderOutput" for node in model.graph.node):
        return
    scalars = {
        tensor.name for tensor in model.graph.initializer if all(n == 1 for n in tensor.dims)
    }
    outputs = [value.name for value in model.graph.output]
    replace_nodes(model, _Rewriter(model, shapes, block, scalars).nodes())
    replace_nodes(model, _fused(live(model), outputs, scalars))


class _Rewriter:
    """Goes through the nodes once; ``_blocked[name]`` is the blocked tensor that equals ``name``."""

    def __init__(
        self,
        model: onnx.ModelProto,
        shapes: Mapping[str, Shape],
        block: int,
        scalars: Set[str],
    ) -> None:
        self._model = model
        self._shapes = shapes
        self._block = block
        self._blocked: dict[str, str] = {}
        self._instead: dict[str, str] = {}
        self._scalars = scalars
        self._names = {name for node in model.graph.node for name in (*node.input, *node.output)}
        self._softmax_along_axis = softmax_is_along_axis(model)

    def nodes(self) -> list[onnx.NodeProto]:
        """Return the nodes, in a valid order, with reorders that nothing may need any more."""
        made: list[onnx.NodeProto] = []
        for node in self._model.graph.node:
            made.extend(self._rewritten(node))
        return made

    def _rewritten(self, node: onnx.NodeProto) -> Iterable[onnx.NodeProto]:
        for position, name in enumerate(node.input):
            if name in self._instead:
                node.input[position] = self._instead[name]
        if node.domain == NCHWC_DOMAIN:
            if node.op_type == "ReorderInput" and not attributes(node).get("channels_last"):
                source = self._blocked.get(node.input[0])
                if source is not None:
                    self._instead[node.output[0]] = source
                    return []
            if node.op_type == "ReorderOutput" and not attributes(node).get("channels_last"):
                self._note(node.output[0], node.input[0])
            return [node]
        if self._may_move(node):
            return self._moved(node)
        if self._is_along_block(node):
            return self._along_block(node)
        gate = self._gate(node)
        return [node] if gate is None else self._gated(node, *gate)

    def _note(self, name: str, blocked: str) -> None:
        if self._in_blocks(name):
            self._blocked[name] = blocked

    def _may_move(self, node: onnx.NodeProto) -> bool:
        """Return whether ``node`` gives the same on blocked tensors, of which it has some at hand."""
        tensors = self._tensors(node)
        blocked = [name for name in tensors if name in self._blocked]
        if node.domain not in _DOMAINS or not blocked:
            return False
        on_channels = attributes(node).get("axis", 0) in (_CHANNEL_AXIS, _CHANNEL_AXIS - 4)
        if node.op_type == "Split":
            return on_channels and all(self._in_blocks(name) for name in node.output)
        if len([*filter(None, node.output)]) != 1:
            return False
        if node.op_type == "Concat":
            return on_channels and len(blocked) == len(tensors)
        shape = self._shapes.get(node.output[0])
        return node.op_type in POINTWISE and all(self._shapes.get(n) == shape for n in tensors)

    def _gate(self, node: onnx.NodeProto) -> tuple[str, str] | None:
        """Return a blocked input of ``node`` and the one that is a factor per channel of it; None: none."""
        if node.op_type != "Mul" or node.domain not in _DOMAINS:
            return None
        for name, gate in (tuple(node.input), tuple(reversed(node.input))):
            shape = self._shapes.get(name, ())
            factors = (1, *shape[1:2], 1, 1)
            if name in self._blocked and shape[0] == 1 and self._shapes.get(gate) == factors:
                return name, gate
        return None

    def _gated(self, node: onnx.NodeProto, name: str, gate: str) -> list[onnx.NodeProto]:
        """Return ``node`` as a convolution whose weights are the factors: the same bits.

        One pixel of whole blocks lies alike in both layouts. ONNX Runtime multiplies in blocks, too, but
        by 16 elements at a time: that is as slow as two reorders.
        """
        channels = self._shapes[name][_CHANNEL_AXIS]
        weights, blocked = map(self._fresh, (gate, node.output[0]))
        shape = self._shape(f"{gate}/shape", (channels, 1, 1, 1))
        inside = helper.make_node(
            "Conv",
            [self._blocked[name], weights],
            [blocked],
            node.name,
            domain=NCHWC_DOMAIN,
            group=channels,
            kernel_shape=[1, 1],
        )
        before = helper.make_node("Reshape", [self._blocked.get(gate, gate), shape], [weights])
        return [before, inside, self._back(blocked, node.output[0])]

    def _is_along_block(self, node: onnx.NodeProto) -> bool:
        """Return whether ``node`` is a softmax along the channels of an image, and these are one block."""
        shape = self._shapes.get(node.input[0], ()) if node.op_type in SOFTMAXES else ()
        return (
            node.domain in _DOMAINS
            and self._softmax_along_axis
            and len(shape) == 4
            and shape[_CHANNEL_AXIS] == self._block
            and attributes(node).get("axis", -1) in (_CHANNEL_AXIS, _CHANNEL_AXIS - 4)
        )

    def _along_block(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return ``node`` along the rows of a blocked tensor: the same bits."""
        shape = self._shapes[node.input[0]]
        before = self._reordered(node.input[0])
        pixels = (shape[0], *shape[2:], self._block)
        rows = self._shape(f"{node.output[0]}/pixels", pixels)
        image = self._shape(f"{node.output[0]}/image", shape)
        apart, result, blocked = (
            self._fresh(f"{node.output[0]}{role}") for role in ("/rows", "/sums", "")
        )
        return [
            *([] if before is None else [before]),
            helper.make_node("Reshape", [self._blocked[node.input[0]], rows], [apart]),
            helper.make_node(node.op_type, [apart], [result], node.name, axis=len(pixels) - 1),
            helper.make_node("Reshape", [result, image], [blocked]),
            self._back(blocked, node.output[0]),
        ]

    def _shape(self, name: str, shape: Shape) -> str:
        """Return the name of a constant that is ``shape``."""
        fresh = self._fresh(name)
        self._model.graph.initializer.append(
            numpy_helper.from_array(np.array(shape, np.int64), fresh)
        )
        return fresh

    def _in_blocks(self, name: str) -> bool:
        shape = self._shapes.get(name, ())
        return len(shape) == 4 and shape[_CHANNEL_AXIS] % self._block == 0

    def _tensors(self, node: onnx.NodeProto) -> list[str]:
        # The second input of a Split says how large its parts are.
        read = node.input[:1] if node.op_type == "Split" else node.input
        return [name for name in read if name and name not in self._scalars]

    def _moved(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return ``node`` on blocked tensors, and the reorders that give its results as they were."""
        before = [self._reordered(name) for name in self._tensors(node)]
        inside = onnx.NodeProto()
        inside.CopyFrom(node)
        inside.output[:] = [self._fresh(name) for name in node.output]
        inside.input[:] = [self._blocked.get(name, name) for name in node.input]
        after = [self._back(*pair) for pair in zip(inside.output, node.output, strict=True)]
        return [*(item for item in before if item is not None), inside, *after]

    def _back(self, blocked: str, name: str) -> onnx.NodeProto:
        """Return the reorder that makes ``name`` of ``blocked``, and note that they are the same."""
        after = helper.make_node("ReorderOutput", [blocked], [name], domain=NCHWC_DOMAIN)
        channels = self._shapes[name][_CHANNEL_AXIS]
        after.attribute.append(helper.make_attribute("channels", channels))
        self._note(name, blocked)
        return after

    def _reordered(self, name: str) -> onnx.NodeProto | None:
        """Return the node that makes ``name`` blocked, None where it is already."""
        if name in self._blocked:
            return None
        self._blocked[name] = self._fresh(name)
        return helper.make_node("ReorderInput", [name], [self._blocked[name]], domain=NCHWC_DOMAIN)

    def _fresh(self, name: str) -> str:
        fresh = f"{name}/blocked"
        while fresh in self._names:
            fresh += "_"
        self._names.add(fresh)
        return fresh


def _fused(
    nodes: Sequence[onnx.NodeProto], outputs: Iterable[str], scalars: Set[str]
) -> list[onnx.NodeProto]:
    """Return the nodes with additions and activations taken into the convolutions before them."""
    uses = Counter(name for node in nodes for name in reads(node))
    uses.update(outputs)
    result: dict[int, onnx.NodeProto] = {}
    open_at: dict[str, int] = {}  # where the convolution is whose result only the next node reads
    for index, node in enumerate(nodes):
        result[index] = node
        for name in sorted(set(node.input) & open_at.keys(), key=lambda name: -open_at[name]):
            convolution = result[open_at[name]]
            fused = _absorbed(convolution, node, scalars)
            if fused is not None:
                del result[open_at.pop(name)]
                # Here and not where the convolution was: what is added may be made in between.
                result[index] = fused
                break
        last = result[index]
        if last.domain == NCHWC_DOMAIN and last.op_type == "Conv" and uses[last.output[0]] == 1:
            open_at[last.output[0]] = index
    return [result[index] for index in sorted(result)]


def _absorbed(
    convolution: onnx.NodeProto, node: onnx.NodeProto, scalars: Set[str]
) -> onnx.NodeProto | None:
    """Return ``convolution`` with ``node``, which reads its result, inside it; None where it cannot be."""
    if node.domain not in ("", "ai.onnx") or "activation" in attributes(convolution):
        return None
    fused = onnx.NodeProto()
    fused.CopyFrom(convolution)
    fused.output[0] = node.output[0]
    if node.op_type in ACTIVATIONS:
        given = attributes(node)
        names = SPELLINGS[node.op_type].parameters
        parameters = [given.get(name, default) for name, default in names]
        fused.attribute.append(helper.make_attribute("activation", node.op_type))
        if parameters:
            fused.attribute.append(helper.make_attribute("activation_params", parameters))
        return fused
    others = [name for name in node.input if name != convolution.output[0]]
    is_sum = node.op_type == "Add" and len(others) == 1 and others[0] not in scalars
    if not is_sum or any(convolution.input[ADDEND:]):
        return None
    weights = list(convolution.input[:ADDEND])
    fused.input[:] = [*weights, *[""] * (ADDEND - len(weights)), others[0]]
    return fused
