"""A network under construction: nodes, weights that are declared and not drawn, constants of formulas.

What comes out is a skeleton (models/graphs/writer.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.graphs.metadata import write_metadata
from models.graphs.writer import declare

OPSET = 17
IR_VERSION = 9

Shape = tuple[int, ...]
#: Side of a square image, or height and width.
Resolution = int | tuple[int, int]


@dataclass(frozen=True)
class ZooTensor:
    """A value in the graph: its name and its shape (batch first)."""

    name: str
    shape: Shape

    @property
    def channels(self) -> int:
        return self.shape[1]


class ZooGraph:
    """Nodes in the order of execution, on a single image input "image" [1, 3, height, width]."""

    def __init__(self, name: str, resolution: Resolution) -> None:
        self._name = name
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: dict[str, TensorProto] = {}
        sides = (resolution,) * 2 if isinstance(resolution, int) else resolution
        self.image = ZooTensor("image", (1, 3, *sides))

    def weight(self, name: str, shape: Shape) -> ZooTensor:
        """Declare numbers that training would find."""
        self._tensors[name] = declare(name, shape)
        return ZooTensor(name, shape)

    def constant(self, name: str, values: NDArray[Any] | float | Sequence[int]) -> ZooTensor:
        """Add numbers of a formula; real ones become float32. The name is taken once.

        Arrays of real numbers count as trained (models/graphs/parameters.py), unless nobody trains what
        reads them: `Operators.whole_numbers` makes others.
        """
        array = np.asarray(values)
        array = array.astype(np.float32 if array.dtype.kind == "f" else np.int64)
        self._tensors.setdefault(name, numpy_helper.from_array(array, name))
        return ZooTensor(name, array.shape)

    def add_node(
        self, kind: str, inputs: Sequence[ZooTensor], shape: Shape, **attributes: Any
    ) -> ZooTensor:
        """Add a node with one output of ``shape``."""
        return self.add_nodes(kind, inputs, [shape], **attributes)[0]

    def add_nodes(
        self, kind: str, inputs: Sequence[ZooTensor], shapes: Sequence[Shape], **attributes: Any
    ) -> list[ZooTensor]:
        """Add a node with an output of each of ``shapes``."""
        label = self.next_label(kind)
        names = [label if not index else f"{label}.{index}" for index in range(len(shapes))]
        read = [tensor.name for tensor in inputs]
        self._nodes.append(helper.make_node(kind, read, names, name=label, **attributes))
        return [ZooTensor(name, shape) for name, shape in zip(names, shapes, strict=True)]

    def next_label(self, kind: str, name: str | None = None) -> str:
        """Return what the next node of ``kind`` is called; ``name``: in the names of its weights."""
        count = sum(node.op_type == kind for node in self._nodes)
        return f"{name or kind.lower()}{count + 1}"

    def skeleton(
        self, outputs: Mapping[str, ZooTensor], metadata: Mapping[str, Any]
    ) -> onnx.ModelProto:
        """Return the model with ``outputs`` under their names, and with ``metadata``."""
        renamed = {tensor.name: name for name, tensor in outputs.items()}
        for node in self._nodes:
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        graph = helper.make_graph(
            self._nodes,
            self._name,
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, self.image.shape)],
            [
                helper.make_tensor_value_info(name, TensorProto.FLOAT, tensor.shape)
                for name, tensor in outputs.items()
            ],
            list(self._tensors.values()),
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="layerstream",
        )
        write_metadata(model, metadata)
        return model
