"""What the engine asks of a device: load a piece once, bind it to memory, launch it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from loader.errors import LoaderError
from pipeline.cells import Cell

#: Reports the end of a copy: error or None, seconds.
Copied = Callable[[LoaderError | None, float], None]
#: Runs a bound kernel to its end. Raises KernelError.
Launch = Callable[[], None]


class DeviceError(Exception):
    """A device cannot load a piece."""


class KernelError(DeviceError):
    """A kernel failed while it ran."""


class Kernel(ABC):
    """A loaded piece, not yet tied to any memory."""

    @abstractmethod
    def bind(self, inputs: Sequence[NDArray[Any]], outputs: Sequence[NDArray[Any]]) -> Launch:
        """Return a launcher that reads ``inputs`` and writes ``outputs``, in the piece's order.

        The arrays are views of the ring and the arena: same shapes and dtypes as the piece's ports,
        C-contiguous, and alive as long as the launcher. An output may be the memory of an input.

        Raises:
            DeviceError: the piece has another number of inputs or outputs.
        """

    def attach(
        self, inputs: Sequence[NDArray[Any] | Cell], outputs: Sequence[NDArray[Any] | Cell]
    ) -> Launch:
        """Return a launcher of a resident piece: results are copied to ``outputs``.

        As ``bind``, but what has no place in the arena is in cells.

        Raises:
            DeviceError: the device does not run resident pieces.
        """
        raise DeviceError("this device does not run what cannot be streamed (resident pieces)")


class Device(ABC):
    """Loads pieces; the same bytes give the same kernel. May have a copy stage."""

    name: str

    @abstractmethod
    def load(self, graph: bytes) -> Kernel:
        """Load a serialised piece.

        Raises:
            DeviceError: it cannot be loaded here.
        """

    def copy(self, source: memoryview, target: memoryview, done: Copied) -> None:
        """Start to copy ``source``, where the disk wrote, to ``target``, where kernels read.

        ``done`` is called once, from any thread. Copies run one at a time, in order.

        Raises:
            DeviceError: kernels use what the disk wrote; the device has no copy stage.
        """
        raise DeviceError(f"the {self.name} device has no copy stage")

    def close(self) -> None:  # noqa: B027  most devices start nothing
        """End what the device started; no kernel and no copy is running."""
