"""Loaded pieces: as launches on the device, or on the CPU between copies."""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.base import Cell, DeviceError, Kernel, Launch
from pipeline.devices.cuda.call import Arguments, DevicePointer, KernelLaunch, LaunchProgram
from pipeline.devices.cuda.driver import Driver
from pipeline.devices.cuda.lowering import Shapes
from pipeline.devices.cuda.memory_kinds import DeviceArray, DeviceMemory
from pipeline.devices.device_memory import Memory

#: The module of calls that a library runs.
CUBLAS = "cublas"


class CudaKernel(Kernel):
    """A program whose functions are compiled and whose constants lie on the device."""

    def __init__(self, driver: Driver, stream: int, program: LaunchProgram) -> None:
        self._driver = driver
        self._stream = stream
        self._program = program
        self._functions = [
            0 if call.module == CUBLAS else driver.function(call.module, call.function)
            for call in program.calls
        ]
        self._constants = _Constants(driver, stream, program.constants)

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        inner = self._program.inner_bytes
        if inner and (scratch is None or scratch.n_bytes < inner):
            raise DeviceError(
                f"a kernel needs {inner} bytes of scratch, the plan has "
                f"{scratch.n_bytes if scratch else 0}"
            )
        bases: dict[str, Sequence[DeviceArray]] = {
            "input": inputs,
            "output": outputs,
            "inner": [scratch.array(0, "uint8", (inner,))] if inner and scratch else [],
            "constant": self._constants.arrays,
        }

        def resolve(pointer: DevicePointer) -> int:
            return bases[pointer.space][pointer.index].address + pointer.offset

        bound = [
            (function, call, Arguments(call.arguments, resolve))
            for function, call in zip(self._functions, self._program.calls, strict=True)
        ]

        def launch() -> None:
            for function, call, arguments in bound:
                self._launch(function, call, arguments)

        return launch

    def _launch(self, function: int, call: KernelLaunch, arguments: Arguments) -> None:
        if call.module == CUBLAS:
            self._driver.multiply(call, arguments, self._stream)
        else:
            self._driver.launch(function, call, arguments, self._stream)


class CudaRows(Kernel):
    """A graph on any number of rows: ``of`` returns what runs it on inputs of such shapes."""

    def __init__(self, of: Callable[[Shapes], Kernel]) -> None:
        self._of = of

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        return self._of(tuple(array.shape for array in inputs)).bind(inputs, outputs, scratch)


class _Constants:
    """The constants of a program on the device, behind each other."""

    def __init__(self, driver: Driver, stream: int, arrays: Sequence[NDArray[Any]]) -> None:
        offsets, end = [], 0
        for array in arrays:
            offsets.append(end)
            end += -(-array.nbytes // 256) * 256
        self._memory = DeviceMemory(driver, stream, end)
        self.arrays = [
            self._memory.array(offset, array.dtype.name, array.shape)
            for offset, array in zip(offsets, arrays, strict=True)
        ]
        for offset, array in zip(offsets, arrays, strict=True):
            self._memory.write(offset, array)

    def __del__(self) -> None:
        # Of a lost device, or one that the interpreter has let go of, only the end of the process frees it.
        with contextlib.suppress(DeviceError):
            self._memory.close()


class CpuBetweenCopies(Kernel):
    """A piece that ``kernel`` computes on the CPU: operands are copied there, results back.

    The thread that launches waits for the kernels before it and computes itself.
    """

    def __init__(self, driver: Driver, stream: int, kernel: Kernel) -> None:
        self._driver = driver
        self._stream = stream
        self._kernel = kernel

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        reads = [_twin(array) for array in inputs]
        writes = [_twin(array) for array in outputs]
        return self._between(inputs, reads, self._kernel.bind(reads, writes), writes, outputs)

    def attach(self, inputs: Sequence[Any | Cell], outputs: Sequence[Any | Cell]) -> Launch:
        reads = [array if isinstance(array, Cell) else _twin(array) for array in inputs]
        writes = [array if isinstance(array, Cell) else _twin(array) for array in outputs]
        return self._between(inputs, reads, self._kernel.attach(reads, writes), writes, outputs)

    def _between(
        self,
        inputs: Sequence[Any],
        host_inputs: Sequence[Any],
        launch: Callable[[], None],
        host_outputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> Launch:
        def move(sources: Sequence[Any], targets: Sequence[Any]) -> None:
            for source, target in zip(sources, targets, strict=True):
                if not isinstance(source, Cell) and _n_bytes(source):
                    self._driver.copy(
                        _address(target), _address(source), _n_bytes(source), self._stream
                    )
            self._driver.synchronize_stream(self._stream)

        def compute() -> None:
            move(inputs, host_inputs)
            launch()
            move(host_outputs, outputs)

        return compute


def _twin(array: DeviceArray) -> NDArray[Any]:
    return np.zeros(array.shape, array.dtype)


def _address(array: DeviceArray | NDArray[Any]) -> int:
    return array.address if isinstance(array, DeviceArray) else int(array.ctypes.data)


def _n_bytes(array: DeviceArray | NDArray[Any]) -> int:
    return array.n_bytes if isinstance(array, DeviceArray) else array.nbytes
