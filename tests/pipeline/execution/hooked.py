"""A CPU device that a test can stop, or make fail, before any kernel."""

from collections.abc import Callable, Sequence
from typing import Any

from pipeline.devices.base import Kernel, Launch
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import Memory


class HookedDevice(CpuDevice):
    """Calls ``before(n)`` before the n-th kernel that is launched, which is of lane ``lane``.

    All kernels of a lane are bound before those of the next one.
    """

    def __init__(self, lanes: int = 1) -> None:
        super().__init__(1)
        self.launched = self.bound = self.lane = 0
        self.lanes = lanes
        self.before: Callable[[int], None] = lambda number: None

    def load(self, graph: bytes) -> Kernel:
        return _Hooked(super().load(graph), self)


class _Hooked(Kernel):
    def __init__(self, kernel: Kernel, device: HookedDevice) -> None:
        self._kernel = kernel
        self._device = device

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        launch = self._kernel.bind(inputs, outputs, scratch)
        position = self._device.bound
        self._device.bound += 1

        def hooked() -> None:
            number = self._device.launched
            self._device.lane = position * self._device.lanes // self._device.bound
            self._device.launched += 1
            self._device.before(number)
            launch()

        return hooked
