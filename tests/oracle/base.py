"""What an operator is given, and the arithmetic that all of them share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Call:
    """One node at work: its inputs (None where an optional one is left out) and its attributes.

    ``opset``: version of the node's domain. ``outputs``: how many it has. ``block``: channels in a
    block of the blocked layout.
    """

    inputs: Sequence[Array | None]
    attributes: Mapping[str, Any]
    opset: int
    outputs: int
    block: int

    def input(self, position: int) -> Array:
        """Return a required input.

        Raises:
            ValueError: the node does not have it.
        """
        found = self.optional(position)
        if found is None:
            raise ValueError(f"input {position} is missing")
        return found

    def optional(self, position: int) -> Array | None:
        return self.inputs[position] if position < len(self.inputs) else None

    def attribute(self, name: str, default: Any = None) -> Any:
        return self.attributes.get(name, default)

    def integers(self, position: int, name: str) -> list[int] | None:
        """Return a list that is an input in new opsets and attribute ``name`` in old ones."""
        array = self.optional(position)
        if array is not None:
            return [int(number) for number in array.reshape(-1)]
        values = self.attribute(name)
        return None if values is None else list(values)


#: Returns the outputs; they may be views of the inputs. Raises ValueError, IndexError or TypeError
#: where the inputs do not fit.
Operator = Callable[[Call], list[Array]]


def wide(x: Array) -> Array:
    """Return ``x`` in the type to compute in: float64 for floating-point numbers."""
    return x.astype(np.float64) if x.dtype.kind == "f" else x
