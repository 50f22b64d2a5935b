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
from models.network.catalogue.records import OperandRecord, OperatorRecord, record
from models.network.names import Op

__all__ = ["OPERATORS", "OperandRecord", "OperatorRecord", "record_of", "traits_of"]

OPERATORS: Mapping[str, OperatorRecord] = {
    row.name: row
    for family in (elementwise, movement, opaque, products, reductions, windowed)
    for row in family.ROWS
}

_UNKNOWN = record(Op.Unknown, (), "opaque", "computed")


def record_of(operator: str) -> OperatorRecord | None:
    """Return the record of ``operator``, named as ``Op`` and ``op_of`` do; None: it is not known here."""
    return OPERATORS.get(operator)


def traits_of(operator: str) -> OperatorRecord:
    """Return the record of ``operator``; of one that is not known, a record without any trait."""
    return OPERATORS.get(operator, _UNKNOWN)
