"""Functions of elements by the operators that ONNX has for them, alone or as a fused one names them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from models.network.activations import Activation, Number
from models.network.catalogue.elementwise import ROWS
from models.network.names import Op
from models.network.node import NodeReader, UnsuitedError
from models.network.operators import elements
from models.network.operators.elements import activation_with, clip_between
from models.network.records import OperatorRecord, Reader

_FUNCTIONS: Mapping[str, OperatorRecord] = {row.name: row for row in ROWS if row.function}
# FusedGemm has each parameter as an attribute of its own.
_PARAMETERS = ("activation_alpha", "activation_beta")


def activation_of(
    operator: str, inputs: Sequence[str], attributes: Mapping[str, Any], number: Number
) -> Activation | None:
    """Return the function of one number that a node is; None: it is none, or its parameters are not known.

    ``inputs``: their names. ``number``: of inputs that are constants.
    """
    record = _FUNCTIONS.get(operator)
    return None if record is None else elements.activation_of(record, inputs, attributes, number)


def with_activation(reader: Reader) -> Reader:
    """Return a reader of what ``reader`` reads, with the activation that an attribute of the node names.

    Parameters that are left out have their defaults.
    """

    def read_fused(read: NodeReader) -> Any:
        name = read.attribute("activation")
        if not name:
            return reader(read)
        parameters = [read.attribute(key) for key in _PARAMETERS if read.attribute(key) is not None]
        activation = _named(name, read.attribute("activation_params", parameters))
        if activation is None:
            raise UnsuitedError(f"activation {name}")
        return replace(reader(read), activation=activation)

    return read_fused


def _named(name: str, parameters: Sequence[float]) -> Activation | None:
    """Return the activation that a fused operator has as an attribute; None: there is none such."""
    record = _FUNCTIONS.get(name)
    if record is None:
        return None
    if record.name is Op.Clip:
        return clip_between(parameters)
    return activation_with(record, dict(zip(record.attributes, parameters, strict=False)))
