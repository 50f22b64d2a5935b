"""Where the values of a piece lie while it is lowered, and what lowering needs of the device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.network.node import NamedTensor, Shape
from pipeline.devices.cuda.call import Argument, DevicePointer, KernelLaunch
from pipeline.devices.names import Precision
from pipeline.planning.arena import plan_arena
from pipeline.program.lives import Lifetime


@dataclass(frozen=True)
class ConvolutionSettings:
    """``algorithms``: by ``geometry_key`` of a convolution, the algorithm that was fastest for it.

    ``libraries``: whether cuBLAS may be measured, too; its bits may depend on the number of filters.
    ``scratch``: whether algorithms of convolutions may take any.
    """

    multiprocessors: int = 8
    precision: Precision = "fp32"
    algorithms: Mapping[str, str] = field(default_factory=dict)
    libraries: bool = False
    scratch: bool = True


class Scope:
    """Places of values by name. Inner memory gets a number for each of its parts, and its place at the end.

    ``tables``: constants that kernels read.
    """

    def __init__(
        self,
        settings: ConvolutionSettings,
        places: Mapping[str, DevicePointer],
        constants: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """``places``: where piece inputs and outputs, and values that become outputs, lie."""
        self.settings = settings
        self.tables: list[NDArray[Any]] = []
        self._sizes: list[int] = []
        self._constants = constants or {}
        self._places = dict(places)

    def read(self, value: NamedTensor) -> DevicePointer:
        """Return where a value lies; a constant becomes a table when it is first read."""
        name = value.name
        if name not in self._places and name in self._constants:
            self._places[name] = self.table(self._constants[name])
        return self.write(value)

    def optional(self, value: NamedTensor | None) -> DevicePointer | None:
        """Return where a value lies; None: there is none."""
        return None if value is None else self.read(value)

    def write(self, value: NamedTensor) -> DevicePointer:
        """Return where to write a value: to an output of the piece, or to inner memory."""
        if value.name not in self._places:
            self._places[value.name] = self._inner(value.n_bytes)
        return self._places[value.name]

    def alias(self, value: NamedTensor, source: NamedTensor) -> None:
        """Let ``value`` lie where ``source`` does."""
        self._places[value.name] = self.read(source)

    def temporary(self, shape: Shape) -> NamedTensor:
        """Return new inner memory of 32-bit floats, as a value that no node has."""
        value = NamedTensor(name=f"\0{len(self._sizes)}", dtype="float32", shape=shape)
        self.write(value)
        return value

    def table(self, array: NDArray[Any]) -> DevicePointer:
        """Return where ``array`` lies when the piece runs."""
        self.tables.append(np.ascontiguousarray(array))
        return DevicePointer("constant", len(self.tables) - 1)

    def placed(self, calls: Sequence[KernelLaunch]) -> tuple[tuple[KernelLaunch, ...], int]:
        """Return ``calls`` with places in one block of inner memory, and how many bytes it has.

        Parts share bytes where no launch comes between the first and the last one of both.
        """
        start = [len(calls)] * len(self._sizes)
        end = [0] * len(self._sizes)
        for step, call in enumerate(calls):
            for argument in call.arguments:
                if isinstance(argument, DevicePointer) and argument.space == "inner":
                    start[argument.index] = min(start[argument.index], step)
                    end[argument.index] = step + 1
        lives = tuple(
            Lifetime(size if first < last else 0, min(first, last), last)
            for size, first, last in zip(self._sizes, start, end, strict=True)
        )
        plan = plan_arena(lives)

        def there(argument: Argument) -> Argument:
            if isinstance(argument, DevicePointer) and argument.space == "inner":
                return DevicePointer("inner", 0, plan.offsets[argument.index] + argument.offset)
            return argument

        moved = (replace(call, arguments=tuple(map(there, call.arguments))) for call in calls)
        return tuple(moved), plan.n_bytes

    def _inner(self, n_bytes: int) -> DevicePointer:
        self._sizes.append(n_bytes)
        return DevicePointer("inner", len(self._sizes) - 1)
