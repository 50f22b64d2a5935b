"""Tables that the export to C still imports, made of the catalogue: gone when it asks that itself."""

from models.network.catalogue import OPERATORS
from models.network.names import Op

CONVOLUTIONS = frozenset(row.name.op_type for row in OPERATORS.values() if row.computes(Op.Conv))
POINTWISE = frozenset(row.name.op_type for row in OPERATORS.values() if row.function)
