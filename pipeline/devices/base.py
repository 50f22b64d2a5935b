"""What the engine needs of a device: load a piece once, bind it to memory, launch it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from models.network.fields import STRINGS, Array
from models.packs.target import Target, host_target
from models.records import Record
from pipeline.devices.device_memory import HostMemory, Memory, Space, Use
from pipeline.devices.elementwise.one_pass import OnePass
from pipeline.devices.expansion import Expansion
from pipeline.devices.integers.native_layers import QuantisedLayers
from pipeline.program.prepare import Abilities
from pipeline.schedule.architectures import Architecture


@dataclass(frozen=True, kw_only=True)
class Tuning(Record):
    """``memory_kind``: of CUDA's ring; empty: not tried. ``algorithms``: by geometry of convolutions."""

    memory_kind: str = ""
    precision: str = ""
    algorithms: dict[str, str] = field(default_factory=dict)


# Tensors of unknown size: strings, and shapes that only a run gives.


class Cell:
    """Holds one such tensor during a sweep; its memory is NumPy's."""

    def __init__(self) -> None:
        self._array: NDArray[Any] | None = None

    @property
    def array(self) -> NDArray[Any]:
        assert self._array is not None, "read before a kernel or a request put something here"
        return self._array

    @array.setter
    def array(self, array: NDArray[Any]) -> None:
        self._array = array

    def clear(self) -> None:
        self._array = None


def takes(port: Array, array: Any) -> bool:
    """Return whether ``array``, NumPy's or its like, has the dtype and shape of ``port``.

    Strings may have any NumPy form.
    """
    if array.shape != port.shape:
        return False
    if port.dtype != STRINGS:
        return bool(array.dtype == np.dtype(port.dtype))
    if array.dtype.kind == "O":
        return all(isinstance(item, str | bytes) for item in array.flat)
    return str(array.dtype.kind) in "US"


def as_strings(array: NDArray[Any]) -> NDArray[np.object_]:
    """Return ``array`` as objects of type str; bytes are UTF-8.

    Raises:
        UnicodeDecodeError: they are not.
    """
    strings = np.empty(array.shape, object)
    # Assigned one by one: NumPy would take apart what has a length.
    for index, item in enumerate(array.flat):
        strings.flat[index] = item.decode() if isinstance(item, bytes) else str(item)
    return strings


# The interface: memory, kernels, devices.

#: Reports the end of something: error or None, seconds it took.
Done = Callable[[Exception | None, float], None]
#: Runs a bound kernel to its end or, on an asynchronous device, enqueues it. Raises KernelError.
Launch = Callable[[], None]


class StoppableLaunch(ABC):
    """A launch that another thread can end: of a graph whose time depends on data, as that of a loop."""

    @abstractmethod
    def __call__(self) -> None:
        """As ``Launch``.

        Raises:
            KernelStoppedError: it was stopped, now or before.
        """

    @abstractmethod
    def stop(self, stopped: bool) -> None:
        """End it if it runs, and let it not begin, until this is called with false."""


def nothing() -> None:
    """Launch nothing: what this step does was done with one before."""


class DeviceError(Exception):
    """A device cannot load a piece."""


class DeviceMemoryError(DeviceError):
    """The device has less free memory than a model needs; the message has the figures."""


class KernelError(DeviceError):
    """A kernel failed while it ran."""


class KernelStoppedError(KernelError):
    """A kernel was stopped while it ran."""


class KernelValueError(KernelError):
    """A kernel refused the values that it read, as an index that is out of range."""


class DeviceLostError(KernelError):
    """The device failed in a way that no kernel of this process survives: it must be restarted."""


class Block(NamedTuple):
    """Elements of some rows of some planes of ``array``, [planes, rows, elements], in device memory."""

    array: Any
    planes: range
    rows: range
    elements: range

    @classmethod
    def of(cls, array: NDArray[Any]) -> "Block":
        """Return all of an array of the host, which is C-contiguous."""
        return cls(array.reshape(1, 1, -1), range(1), range(1), range(array.size))

    @property
    def part(self) -> Any:
        """Return it of an array of the host, as a view."""
        return self.array[
            self.planes.start : self.planes.stop,
            self.rows.start : self.rows.stop,
            self.elements.start : self.elements.stop,
        ]


class Kernel(ABC):
    """A loaded piece, not yet tied to any memory."""

    @abstractmethod
    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        """Return a launcher that reads ``inputs`` and writes ``outputs``, in the piece's order.

        The arrays come from the device's memory (the ring, the arena): same shapes and dtypes as the
        piece's ports, C-contiguous, and alive as long as the launcher. An output may be the memory of an
        input. ``scratch`` is the engine's own, of the plan's size; a CPU kernel finds its own instead.

        Raises:
            DeviceError: the piece has another number of inputs or outputs.
        """

    def attach(self, inputs: Sequence[Any | Cell], outputs: Sequence[Any | Cell]) -> Launch:
        """Return a launcher of a resident piece: results are copied to ``outputs``.

        As ``bind``, but what has no place in the arena is in cells. It may be a ``StoppableLaunch``.

        Raises:
            DeviceError: the device does not run resident pieces.
        """
        raise DeviceError("this device does not run what cannot be streamed (resident pieces)")


class Device(ABC):
    """Loads pieces; the same bytes give the same kernel. May have a copy stage, may be asynchronous."""

    name: str
    #: Whether launches return before kernels have run; then ``finish`` calls back when they have.
    asynchronous = False
    #: Threads of the CPU that compute.
    threads = 1
    #: What a GPU is called, with capability and driver; empty where the CPU computes.
    gpu = ""
    #: Whether ``join`` makes one kernel of several pieces; else they run one by one.
    joins = False
    #: Computes operators on elements in one pass; None: they are kernels like others.
    one_pass: OnePass | None = None
    #: Computes quantised pieces in little memory; None: they are kernels like others.
    quantised: QuantisedLayers | None = None

    @property
    def native_kernels(self) -> str:
        """What processor those for operators on elements were made for, or "none"."""
        return "none" if self.one_pass is None else self.one_pass.processor

    @property
    def quantised_kernels(self) -> str:
        """What processor those for quantised layers were made for, and which ones, or "none"."""
        return "none" if self.quantised is None else self.quantised.kernels

    @property
    def computes_on_caller(self) -> bool:
        """Whether kernels compute on the thread that launches them alone, so that its core is theirs."""
        return False

    @property
    def launching_cores(self) -> tuple[int, ...]:
        """Where the thread that launches kernels shall be kept meanwhile; () anywhere."""
        return ()

    @property
    def target(self) -> Target:
        """What a pack must be compiled for to run here."""
        return host_target()

    @abstractmethod
    def load(self, graph: bytes) -> Kernel:
        """Load a serialised piece.

        Raises:
            DeviceError: it cannot be loaded here.
        """

    def abilities(self) -> Abilities:
        """Return what programs are prepared for, as the device works now."""
        return Abilities()

    def join(self, graphs: Sequence[bytes]) -> Kernel:
        """Load serialised pieces as one kernel that runs them in this order.

        It is bound to the inputs of the first piece, of the second, and so on; likewise to outputs. Memory
        may be an output of one and an input or output of another, as if they were bound one by one.

        Raises:
            DeviceError: it cannot be loaded here.
        """
        raise DeviceError(f"the {self.name} device joins no pieces")

    def copier(self, source: Block, target: Block) -> Launch:
        """Return what copies ``source`` to ``target``, floats of 32 bits; they do not overlap."""
        # A function of its own would take twice the memory: a plan may have thousands.
        return partial(np.copyto, target.part, source.part)

    def putter(self, target: Block, put: Callable[[NDArray[Any]], None]) -> Launch:
        """Return what has ``put`` write to ``target``: to an array of the host of its shape."""
        return partial(put, target.part)

    def filler(self, target: Block, number: float) -> Launch:
        """Return what writes ``number`` to all of ``target``, floats of 32 bits."""
        return partial(target.part.fill, number)

    def adapt(self, architecture: Architecture) -> Architecture:
        """Return ``architecture`` as this device runs it."""
        return architecture

    def tunings(self, graphs: Sequence[bytes], file: Path) -> Sequence[Tuning]:
        """Return what can be chosen for a model, at least one.

        Args:
            graphs: its serialised pieces.
            file: its weights: memory kinds are tried by reading there.

        Raises:
            DeviceError: a kernel fails. LoaderError: the file cannot be read.
        """
        return (Tuning(),)

    def tune(self, tuning: Tuning) -> None:  # noqa: B027  most devices have nothing to choose
        """Work from now on as was found fastest; engines that are open stay as they are."""

    def allocate(self, use: Use, n_bytes: int, slots: int = 1) -> Memory:
        """Return memory for ``use``. ``slots``: it is so many equal places, lent one by one.

        Raises:
            DeviceError: there is not enough of it.
        """
        return HostMemory(0 if use == "scratch" else n_bytes)

    def reserve(self, capacity_bytes: int) -> Space | None:
        """Return space for activations that engines share in turns; None: here each has its own.

        Raises:
            OSError: the system does not give as many addresses.
        """
        return Space(capacity_bytes)

    def memory_info(self) -> tuple[int, int] | None:
        """Return free and total bytes of a device that counts its own memory.

        Raises:
            DeviceLostError: it can no longer say.
        """
        return None

    def check(self, sizes: Mapping[Use, int]) -> None:  # noqa: B027  most devices have what the host has
        """Look whether a model's memory, bytes by use, can be allocated.

        Raises:
            DeviceError: it cannot; the message has the figures.
        """

    def copy(
        self,
        source: memoryview,
        target: Memory,
        offset: int,
        done: Done,
        expansion: Expansion | None = None,
    ) -> None:
        """Start to copy ``source``, where the disk wrote, to ``target``, where kernels read.

        ``expansion``: what becomes of it on the way; None: it stays as it is. ``done`` is called once, from
        any thread. Copies run one at a time, in order.

        Raises:
            DeviceError: kernels use what the disk wrote; the device has no copy stage, or expands nothing.
            LoaderError: the system gives no thread that copies.
        """
        raise DeviceError(f"the {self.name} device has no copy stage")

    def finish(self, done: Done) -> None:
        """Call ``done``, once and from any thread, when every kernel launched so far has ended."""
        done(None, 0.0)

    def close(self) -> None:  # noqa: B027  most devices start nothing
        """End what the device started; no kernel and no copy is running."""


class CachingDevice(Device):
    """Makes one kernel of pieces that are equal. It lives as long as a launcher uses it."""

    def __init__(self) -> None:
        self._kernels: WeakValueDictionary[bytes, Kernel] = WeakValueDictionary()

    def load(self, graph: bytes) -> Kernel:
        return self.kept(graph, self.make)

    def kept(self, graph: bytes, make: Callable[[bytes], Kernel]) -> Kernel:
        """Return the kernel of ``graph``, which ``make`` makes where there is none."""
        kernel = self._kernels.get(graph)
        if kernel is None:
            kernel = self._kernels[graph] = make(graph)
        return kernel

    @abstractmethod
    def make(self, graph: bytes) -> Kernel:
        """Make a kernel of a serialised piece; raises as ``load``."""
