"""A crop of several axes, said as one of each: some rows, then some columns of these.

On rows (models/compiler/cutting/rows.py) the first is what is read and the second a kernel. That is said
behind ONNX Runtime, which would make one node of the rows that two patches share, and keep
them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper

from models.graphs.rewriting import Rewriter

#: Inputs: what is cut, starts, ends, axes, then perhaps steps.
_AXES = 3


class TakeCropsApart(Rewriter):
    """Replaces each Slice with constant places on several axes by one for each axis."""

    def replaced(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto] | None:
        if (node.op_type, node.domain) != ("Slice", "") or len(node.input) <= _AXES:
            return None
        given = [array for name in node.input[1:] if (array := self.numbers(name)) is not None]
        is_known = len(given) == len(node.input) - 1 and given[0].size > 1
        is_crop = is_known and all((step == 1).all() for step in given[_AXES:])
        return self._one_by_one(node, given) if is_crop else None

    def _one_by_one(
        self, node: onnx.NodeProto, given: Sequence[NDArray[Any]]
    ) -> Iterator[onnx.NodeProto]:
        source, name, count = node.input[0], node.output[0], given[0].size
        for number in range(count):
            last = number == count - 1
            places = [
                self.constant(f"{name}.place{number}.{part}", item[number : number + 1])
                for part, item in zip(("start", "end", "axis"), given, strict=False)
            ]
            result = name if last else f"{name}.axis{number}"
            label = node.name if last else result
            yield helper.make_node("Slice", [source, *places], [result], label)
            source = result
