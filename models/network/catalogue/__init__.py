"""Every operator that is known, by its name: what it means, once.

What asks for a trait of operators asks the record: ``record_of(op_of(node))``. A table of operators by name
anywhere else would be the same fact twice.
"""

from collections.abc import Mapping

from models.network.catalogue import (
    elementwise,
    movement,
    opaque,
    products,
    reductions,
    windowed,
)
from models.network.node import KnownTensors, Node, NodeReader, UnsuitedError
from models.network.operators.reading import Operator
from models.network.records import UNKNOWN, OperandRecord, OperatorRecord

__all__ = [
    "OPERATORS",
    "OperandRecord",
    "OperatorRecord",
    "read_operator",
    "record_of",
    "traits_of",
]

OPERATORS: Mapping[str, OperatorRecord] = {
    row.name: row
    for family in (elementwise, movement, opaque, products, reductions, windowed)
    for row in family.ROWS
}


def record_of(operator: str) -> OperatorRecord | None:
    """Return the record of ``operator``, named as ``Op`` and ``op_of`` do; None: it is not known here."""
    return OPERATORS.get(operator)


def traits_of(operator: str) -> OperatorRecord:
    """Return the record of ``operator``; of one that is not known, a record without any trait."""
    return OPERATORS.get(operator, UNKNOWN)


def read_operator(node: Node, known: KnownTensors) -> Operator:
    """Return what ``node`` computes; ``known``: of its inputs.

    Raises:
        UnsuitedError: no family has such an operator in this version, or it says something that is not
            known here.
    """
    of = OPERATORS.get(node.operator)
    if of is None or of.read is None:
        raise UnsuitedError("no such operator is known")
    if not of.describes(node.opset):
        raise UnsuitedError(f"what it means in opset {node.opset} is not known")
    operator: Operator = of.read(NodeReader(node, known, of))
    return operator
