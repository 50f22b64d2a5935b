"""Zero points that are left out, as constants: behind this every operator on bytes has those it takes.

One that is left out is zero, of the type of the bytes beside it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.network.node import Node
from pipeline.export_c.network.network import Network

#: Where operators may leave out a zero point; the scale is the input before it.
_OPTIONAL = {
    "DequantizeLinear": (2,),
    "QLinearLeakyRelu": (2, 4),
    "QLinearSigmoid": (2, 4),
    "QLinearSoftmax": (2, 4),
    "QuantizeLinear": (2,),
}
_ZERO = 2
#: Where operators have the first of their data, if not in front.
_DATA = {"QLinearConcat": 2}

Kinds = Mapping[str, np.dtype[Any]]


def with_zero_points(network: Network) -> Network:
    """Return ``network`` with a zero point wherever an operator takes one."""
    constants = dict(network.constants)
    kinds = {name: np.asarray(array).dtype for name, array in constants.items()}
    kinds |= {port.name: np.dtype(port.dtype) for port in network.inputs}
    nodes = []
    for node in network.nodes:
        name = node.operator.rpartition(".")[2]
        kind = _quantised(node, kinds) if name == "QuantizeLinear" else _data(node, name, kinds)
        nodes.append(node if kind is None else _with_zeros(node, name, kind, constants))
        if kind is not None:
            made = np.dtype(np.float32) if name == "DequantizeLinear" else kind
            kinds |= dict.fromkeys(node.outputs, made)
    return replace(network, nodes=tuple(nodes), constants=constants)


def _data(node: Node, name: str, kinds: Kinds) -> np.dtype[Any] | None:
    """Return the dtype of the data of ``node``, which is also that of what it makes; None: not known."""
    place = _DATA.get(name, 0)
    return kinds.get(node.inputs[place]) if place < len(node.inputs) else None


def _quantised(node: Node, kinds: Kinds) -> np.dtype[Any] | None:
    """Return the dtype that QuantizeLinear makes."""
    if len(node.inputs) > _ZERO and node.inputs[_ZERO]:
        return kinds.get(node.inputs[_ZERO])
    return helper.tensor_dtype_to_np_dtype(node.attributes.get("output_dtype") or TensorProto.UINT8)


def _with_zeros(
    node: Node, name: str, kind: np.dtype[Any], constants: dict[str, NDArray[Any]]
) -> Node:
    """Return ``node`` with the zero points that it leaves out: a zero for each scale."""
    inputs = list(node.inputs)
    for position in _OPTIONAL.get(name, ()):
        inputs += [""] * (position + 1 - len(inputs))
        if not inputs[position]:
            scale = constants.get(inputs[position - 1], np.zeros(()))
            inputs[position] = f"{node.output}/{position}"
            constants[inputs[position]] = np.zeros(scale.shape, kind)
    return replace(node, inputs=tuple(inputs))
