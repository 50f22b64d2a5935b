"""Where the values of a piece lie while it is lowered, and what is known about them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.cuda.call import Pointer
from pipeline.devices.cuda.calls.convolutions.geometry import Convolution
from pipeline.devices.cuda.lowering.errors import UnsuitedError
from pipeline.devices.cuda.lowering.node import Node
from pipeline.devices.cuda.lowering.settings import Settings
from pipeline.devices.cuda.lowering.shapes import Value


class Scope:
    """Values by name. Inner memory gets a number for each of its parts here, and its place at the end."""

    def __init__(
        self,
        settings: Settings,
        values: Mapping[str, Value],
        constants: Mapping[str, NDArray[Any]],
        places: Mapping[str, Pointer],
    ) -> None:
        """``places``: where piece inputs and outputs, and values that become outputs, lie."""
        self.settings = settings
        self.convolutions: list[Convolution] = []
        self.tables: list[NDArray[Any]] = []
        self.inner: list[int] = []
        self._values = values
        self._constants = constants
        self._places = dict(places)

    def value(self, name: str) -> Value:
        """Return shape and dtype.

        Raises:
            UnsuitedError: they are not known before the piece runs, or there is no element.
        """
        found = self._values.get(name)
        if found is None:
            raise UnsuitedError("a shape is not known")
        if not found.count:
            raise UnsuitedError("a tensor is empty")
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a float32 tensor.

        Raises:
            UnsuitedError: it has another dtype, or is not known.
        """
        value = self.value(name)
        if value.dtype != np.float32:
            raise UnsuitedError(f"{value.dtype.name} numbers")
        return value.shape

    def constant(self, name: str | None) -> NDArray[Any] | None:
        """Return the numbers of a constant; None where it is none, or nothing is named."""
        return None if name is None else self._constants.get(name)

    def required(self, name: str) -> NDArray[Any]:
        """Return the numbers of a constant.

        Raises:
            UnsuitedError: it is none.
        """
        found = self._constants.get(name)
        if found is None:
            raise UnsuitedError("an input that kernels need beforehand is not constant")
        return found

    def integers(self, node: Node, position: int, name: str) -> list[int] | None:
        """Return a list that is an input in new opsets and attribute ``name`` in old ones.

        Raises:
            UnsuitedError: the input is not constant.
        """
        source = node.optional(position)
        if source is not None:
            return [int(number) for number in self.required(source).reshape(-1)]
        values = node.attribute(name)
        return None if values is None else list(values)

    def listed(self, node: Node, position: int, name: str) -> list[int]:
        """As ``integers``, of a list that must be there.

        Raises:
            UnsuitedError: it is not, or it is not constant.
        """
        found = self.integers(node, position, name)
        if found is None:
            raise UnsuitedError(f"no {name}")
        return found

    def read(self, name: str) -> Pointer:
        """Return where a value lies; a constant becomes a table when it is first read."""
        if name not in self._places and name in self._constants:
            self._places[name] = self.table(self._constants[name])
        return self.write(name)

    def write(self, name: str) -> Pointer:
        """Return where to write a value: to an output of the piece, or to inner memory."""
        if name not in self._places:
            self._places[name] = self.scratch(self.value(name).n_bytes)
        return self._places[name]

    def alias(self, name: str, source: str) -> None:
        """Let ``name`` lie where ``source`` does."""
        self._places[name] = self.read(source)

    def scratch(self, n_bytes: int) -> Pointer:
        """Return new inner memory."""
        self.inner.append(n_bytes)
        return Pointer("inner", len(self.inner) - 1)

    def table(self, array: NDArray[Any]) -> Pointer:
        """Return where ``array`` lies when the piece runs."""
        self.tables.append(np.ascontiguousarray(array))
        return Pointer("constant", len(self.tables) - 1)
