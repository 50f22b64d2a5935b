"""Maxima of bytes before what keeps their order; and pools with another output than is foreseen.

What keeps the order of numbers makes of the largest one what is the largest behind it. So an activation by
a table, or a concatenation that rounds again, may come behind the maxima, and has a fourth to do. What
layers make is then read by maxima at once, and never lies in a plan (cutting/quantised_groups.py).

With ``ceil_mode`` a last window that begins in the padding is left out; the shape that is inferred counts
it. Such a pool is said again with padding of which the shape comes that is computed.
"""

from collections.abc import Mapping

import onnx

from models.graphs.nodes import attributes, copied, set_attributes
from models.graphs.rewriting import Rewriter
from models.network.fields import Array
from models.network.windows import windows_of

_POOLS = ("MaxPool", "AveragePool", "LpPool")
_LARGEST = "NhwcMaxPool"
# The axis of channels there.
_CHANNELS = 3
# What ONNX has where a LeakyRelu says nothing.
_ALPHA = 0.01


class PoolFirst(Rewriter):
    """Moves maxima of bytes before what keeps their order, where they alone read what that makes."""

    def replaced(self, node: onnx.NodeProto) -> list[onnx.NodeProto] | None:
        if node.op_type != _LARGEST or len(node.output) > 1:
            return None
        return self._moved(node, node.input[0], node.output[0]) or None

    def _moved(self, pool: onnx.NodeProto, source: str, result: str) -> list[onnx.NodeProto]:
        """Return the operators that make ``result`` of maxima; none where ``source`` is not theirs."""
        maker = self.makers.get(source)
        places = () if maker is None else _places(maker)
        if maker is None or not places or self.uses[source] != 1:
            return []
        last, nodes = copied(maker, outputs=[result]), list[onnx.NodeProto]()
        for place in places:
            name, read = f"{result}/{place}", maker.input[place]
            last.input[place] = name
            further = self._moved(pool, read, name)
            nodes += further
            if further:
                continue
            largest = copied(pool, [read], [name], name)
            if read in self.makers and read not in self.behind:
                self.behind[read] = largest
            else:
                nodes.append(largest)
        return [*nodes, last]


def _places(node: onnx.NodeProto) -> range:
    """Return which inputs of ``node`` are numbers whose order it keeps, channel by channel."""
    if node.op_type == "QLinearLeakyRelu" and attributes(node).get("alpha", _ALPHA) >= 0:
        return range(1)
    if node.op_type == "QLinearConcat" and attributes(node)["axis"] in (-1, _CHANNELS):
        return range(2, len(node.input), 3)
    return range(0)


def settle_pool(model: onnx.ModelProto, values: Mapping[str, Array]) -> bool:
    """Change the first pool of ``model`` whose output in ``values`` is not what is computed.

    Shapes behind it are then wrong, too: infer them again, and call this again until it returns False.
    """
    for node in model.graph.node:
        if node.op_type not in _POOLS or node.input[0] not in values:
            continue
        known = attributes(node)
        if not known.get("ceil_mode", 0) or known.get("auto_pad", "NOTSET") != "NOTSET":
            continue
        windows = windows_of(known, known["kernel_shape"], values[node.input[0]].shape[2:])
        if values[node.output[0]].shape[2:] != windows.result:
            # What the last windows need behind the input, and what they are given.
            needed = [
                axis.fitted(length, made).behind
                for axis, length, made in zip(
                    windows.axes, windows.size, windows.result, strict=True
                )
            ]
            ends = [min(pair) for pair in zip(needed, windows.behind, strict=True)]
            if min(ends) < 0:  # windows so far apart that one less leaves a part of the input
                set_attributes(node, ceil_mode=0)
                ends = [max(pair) for pair in zip(needed, windows.behind, strict=True)]
            set_attributes(node, pads=[*windows.before, *ends])
            _forget_shapes(model.graph)
            return True
    return False


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Remove what was inferred from the larger output."""
    del graph.value_info[:]
    for port in graph.output:
        port.type.tensor_type.ClearField("shape")
