"""Signed activations as unsigned ones: the same numbers, 128 steps up, with a zero point 128 higher.

ONNX Runtime's fast kernels for x86 take unsigned activations. Signed ones, as TFLite and TensorRT have
them, it makes unsigned only where a value has one reader, and computes the rest as floats; its kernels for
signed ones take ten times as long. So each value between QuantizeLinear and DequantizeLinear becomes
unsigned here, and what comes as signed integers or leaves so is converted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.graphs.file import reference
from models.graphs.nodes import attributes, reads, replace_nodes, set_attributes

_UP = 128
# A value, its scale and its zero point.
_OPERANDS = 3
# These give integers that they read: other steps, the same places.
_MOVING = frozenset(
    ("Flatten", "Identity", "MaxPool", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
)


def make_unsigned(model: onnx.ModelProto) -> None:
    """Let no QuantizeLinear of ``model`` make signed 8-bit integers for other nodes."""
    _Unsigned(model).run()


@dataclass
class _Values:
    """8-bit values that are one another, moved, and who makes numbers of them."""

    names: list[str]
    readers: list[onnx.NodeProto] = field(default_factory=list)


class _Unsigned:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._model, self._graph = model, model.graph
        self._tensors = {tensor.name: tensor for tensor in model.graph.initializer}
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in dict.fromkeys(reads(node)):
                self._readers.setdefault(name, []).append(node)
        self._outputs = {value.name for value in model.graph.output}
        self._used = {*self._readers, *self._tensors, *self._outputs}
        self._used |= {node.name for node in self._graph.node}
        self._changed: set[str] = set()

    def run(self) -> None:
        signed = {port.name for port in self._graph.input if _is_signed(port)}
        nodes: list[onnx.NodeProto] = []
        for node in list(self._graph.node):
            nodes.append(node)
            if node.op_type == "QuantizeLinear" and self._makes_signed(node):
                nodes.extend(self._raised(node))
            elif node.op_type == "DequantizeLinear" and node.input[0] in signed:
                nodes.extend(self._again(node))
        replace_nodes(self._model, nodes)
        known = [value for value in self._graph.value_info if value.name not in self._changed]
        del self._graph.value_info[:]
        self._graph.value_info.extend(known)

    def _makes_signed(self, node: onnx.NodeProto) -> bool:
        if node.input[0] in self._tensors or not self._is_plain(node):
            return False
        if len(node.input) == _OPERANDS and node.input[2]:
            kind = self._tensors[node.input[2]].data_type
            return bool(kind == TensorProto.INT8)
        return bool(attributes(node).get("output_dtype", 0) == TensorProto.INT8)

    def _has_scale(self, node: onnx.NodeProto) -> bool:
        scale = self._tensors.get(node.input[1])
        return scale is not None and not attributes(node).get("block_size", 0)

    def _raised(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Let ``node`` make unsigned integers; yield what makes signed ones again for callers."""
        values = self._moved(node.output[0])
        if values is None:
            return
        given = node.output[0]
        if given in self._outputs:
            if values.readers:  # those who read it and the caller want one each
                return
            yield from self._lowered(node, given)
        self._changed.update(values.names)
        for one in (node, *values.readers):
            self._raise_zero_point(one)

    def _moved(self, name: str) -> _Values | None:
        """Return the value ``name`` and those that it is moved to; None: someone else reads one of them."""
        values = _Values([name])
        for value in values.names:
            for reader in self._readers.get(value, []):
                if reader.input[0] != value or (
                    reader.op_type in _MOVING and len(reader.output) > 1
                ):
                    return None
                if reader.op_type in _MOVING:
                    values.names.append(reader.output[0])
                elif reader.op_type == "DequantizeLinear" and self._is_plain(reader):
                    values.readers.append(reader)
                else:
                    return None
            if value in self._outputs and value != name:
                return None
        return values

    def _is_plain(self, node: onnx.NodeProto) -> bool:
        if len(node.input) < _OPERANDS or not node.input[2]:
            return self._has_scale(node)
        zero_point = self._tensors.get(node.input[2])
        return self._has_scale(node) and zero_point is not None and reference(zero_point) is None

    def _lowered(self, node: onnx.NodeProto, given: str) -> Iterator[onnx.NodeProto]:
        """Let ``node`` make another value; yield nodes that make the signed ``given`` of it."""
        last = onnx.NodeProto()
        last.CopyFrom(node)
        raised, number = self._fresh(f"{given}/unsigned"), self._fresh(f"{given}/number")
        zero_point = self._raised_zero_point(node)
        node.output[0] = raised
        yield helper.make_node(
            "DequantizeLinear", [raised, node.input[1], zero_point], [number], number
        )
        last.input[0], last.name = number, self._fresh(f"{given}/signed")
        yield last

    def _again(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield nodes that quantise what ``node`` makes of a signed input of the model, unsigned."""
        if not self._is_plain(node) or node.output[0] in self._outputs:
            return
        number, made = node.output[0], self._fresh(f"{node.output[0]}/signed")
        raised = self._fresh(f"{number}/unsigned")
        zero_point = self._raised_zero_point(node)
        node.output[0] = made
        self._changed.add(number)
        yield helper.make_node(
            "QuantizeLinear", [made, node.input[1], zero_point], [raised], raised
        )
        name = self._fresh(f"{number}/again")
        yield helper.make_node(
            "DequantizeLinear", [raised, node.input[1], zero_point], [number], name
        )

    def _raise_zero_point(self, node: onnx.NodeProto) -> None:
        zero_point = self._raised_zero_point(node)
        del node.input[2:]
        node.input.append(zero_point)
        set_attributes(node, output_dtype=None)

    def _raised_zero_point(self, node: onnx.NodeProto) -> str:
        before = np.zeros(tuple(self._tensors[node.input[1]].dims), np.int16)
        if len(node.input) == _OPERANDS and node.input[2]:
            before = before + numpy_helper.to_array(self._tensors[node.input[2]])
        name = self._fresh(f"{node.output[0]}/zero_point")
        tensor = numpy_helper.from_array((before + _UP).astype(np.uint8), name)
        self._tensors[name] = tensor
        self._graph.initializer.append(tensor)
        return name

    def _fresh(self, name: str) -> str:
        while name in self._used:
            name += "_"
        self._used.add(name)
        return name


def _is_signed(port: onnx.ValueInfoProto) -> bool:
    return port.type.tensor_type.elem_type == TensorProto.INT8
