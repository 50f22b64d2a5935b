"""What operators are lowered with: what is known of values, constants, and the steps so far."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.fields import Array
from models.network.node import KnownTensors, NamedTensor, UnsuitedError
from models.network.operators.movement import Copy
from models.network.operators.on_bytes import Quantisation
from pipeline.export_c.lowering.calls import (
    After,
    Argument,
    KernelStep,
    LoweredLayer,
    Same,
    ValuePointer,
    Weight,
)
from pipeline.export_c.network.network import Scaled, scaled


class StepBuilder:
    """``values``: dtype and shape of all that was made; ``constants``: those given, and those computed.

    ``label``: of the node whose steps are added. What cannot become C raises UnsuitedError. A copy of all
    of a value under another name is none, but of ``outputs``: later steps read the value itself.
    """

    def __init__(
        self, constants: Mapping[str, NDArray[Any]], outputs: Collection[str] = ()
    ) -> None:
        self.values: dict[str, Array] = {}
        self.constants = dict(constants)
        self.steps: list[KernelStep] = []
        self.label = ""
        self.known = KnownTensors(self._array, self.constants.get)
        self._outputs = outputs
        self._names: dict[str, str] = {}

    def _array(self, name: str) -> Array | None:
        constant = self.constants.get(name)
        if constant is None:
            return self.values.get(name)
        return Array(dtype=constant.dtype.name, shape=constant.shape)

    def held(self, value: NamedTensor | None) -> NDArray[Any] | None:
        """Return the numbers of ``value`` in its shape, if it is a constant."""
        numbers = None if value is None else self.constants.get(value.name)
        return None if value is None or numbers is None else numbers.reshape(value.shape)

    def constant(self, value: NamedTensor) -> NDArray[Any]:
        """Return the numbers of ``value``, which must be a constant."""
        numbers = self.held(value)
        if numbers is None:
            raise UnsuitedError(f"{value.name!r} is not constant")
        return numbers

    def scaled(self, how: Quantisation) -> Scaled:
        """Return how bytes stand for numbers, by constants."""
        return scaled(self.constant(how.scale), self.constant(how.zero))

    def operand(self, value: NamedTensor) -> ValuePointer | Weight:
        """Return a pointer to ``value``, of which all is read."""
        numbers = self.held(value)
        return (
            ValuePointer(value.name) if numbers is None else Weight(np.ascontiguousarray(numbers))
        )

    def weight(self, value: NamedTensor | None) -> Weight | None:
        """Return a pointer to a constant of 32-bit floats, if there is one."""
        if value is None:
            return None
        return Weight(np.ascontiguousarray(self.constant(value), np.float32))

    def make(self, value: NamedTensor) -> ValuePointer:
        """Say that ``value`` is made by the steps that follow; return a pointer to it."""
        self.values[value.name] = Array(dtype=value.dtype, shape=value.shape)
        return ValuePointer(value.name)

    def fold(self, value: NamedTensor, numbers: NDArray[Any]) -> None:
        """Say that ``value`` is a constant."""
        self.constants[value.name] = np.ascontiguousarray(numbers).reshape(value.shape)

    def step(
        self,
        output: NamedTensor,
        kernel: str,
        *arguments: Argument,
        in_place: Sequence[str] = (),
        pointwise: bool = False,
        same: Same | None = None,
        after: After | None = None,
        operator: Copy | Scaled | LoweredLayer | None = None,
    ) -> None:
        """Add a step that makes ``output``, or a part of it."""
        for item in arguments:
            if isinstance(item, ValuePointer) and item.name not in self.values:
                raise UnsuitedError(f"{item.name!r} is constant")
        step = KernelStep(
            self.label,
            kernel,
            tuple(map(self._renamed, arguments)),
            output.name,
            tuple(map(self._name, in_place)),
            pointwise,
            same if same is None else replace(same, source=self._name(same.source)),
            after,
            operator=operator,
        )
        if after is not None and after.addend is not None:
            step = replace(step, after=replace(after, addend=self._name(after.addend)))
        if step.same is not None and self._is_whole(step.same, output.name):
            self._names[output.name] = step.same.source
        else:
            self.steps.append(step)

    def _is_whole(self, same: Same, made: str) -> bool:
        """Return whether ``same`` is all of a value under the name ``made``, which may go."""
        sizes = {self.values[name].n_bytes for name in (same.source, made)}
        return sizes == {same.n_bytes} and made not in self._outputs

    def _name(self, name: str) -> str:
        return self._names.get(name, name)

    def _renamed(self, item: Argument) -> Argument:
        return replace(item, name=self._name(item.name)) if isinstance(item, ValuePointer) else item
