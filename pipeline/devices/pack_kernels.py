"""The one place where kernels are bound to memory, whatever they are."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, assert_never

import numpy as np
from numpy.typing import NDArray

from pipeline.devices.base import Block, Device, DeviceError, Launch, nothing
from pipeline.devices.device_memory import Memory
from pipeline.devices.elementwise.one_pass import OnePass
from pipeline.devices.elementwise.programs import NativeProgram, native_program
from pipeline.program.kernels import (
    Chain,
    CopyKernel,
    FillKernel,
    IntegerTask,
    Kernel,
    OrtGraph,
    TableLookup,
)
from pipeline.program.program import Program


class KernelCall(NamedTuple):
    """A kernel, and where in the device's memory its inputs and outputs lie.

    Copies and fills of a region have blocks of rows, or, for an input, what writes rows to an array.
    """

    kernel: Kernel
    inputs: Sequence[Any]
    outputs: Sequence[Any]


#: Returns what reads rows of a table and writes them to its output.
BindLookup = Callable[[TableLookup, Sequence[Any], Sequence[Any]], Launch]
#: Writes rows of a request to an array of their shape.
PutRows = Callable[[NDArray[Any]], None]


class PackKernels:
    """Binds kernels of ``program`` on ``device`` to memory.

    ``bind_lookup``: binds what reads rows of tables; None: there is nothing to read them from.
    """

    def __init__(
        self, program: Program, device: Device, bind_lookup: BindLookup | None = None
    ) -> None:
        self._bind_lookup = bind_lookup
        self._program = program
        self._graphs = program.pack.graphs
        self._device = device
        self._quantised = None if device.quantised is None else device.quantised.of_model()
        self._one_pass = device.one_pass
        self._jobs = None if device.one_pass is None else device.one_pass.of_model()

    def bind(self, placed: KernelCall, scratch: Memory | None = None) -> Launch:
        """Return what runs a kernel.

        Raises:
            DeviceError: it cannot be loaded.
        """
        kernel, inputs, outputs = placed
        match kernel:
            case OrtGraph(graph, resident):
                loaded = self._device.load(self._graphs[graph])
                return (
                    loaded.attach(inputs, outputs)
                    if resident
                    else loaded.bind(inputs, outputs, scratch)
                )
            case Chain():
                one_pass, program, arrays = self._chain(kernel, inputs, outputs)
                bound = one_pass.bind(program, arrays, self._jobs)
                if bound is None:
                    raise self._other_plan()
                return bound
            case IntegerTask():
                if self._quantised is None:
                    raise self._other_plan()
                task, constants = self._program.quantised[kernel.task], self._graphs[kernel.graph]
                workspace = kernel.workspace_bytes
                return self._quantised.bind(task, constants, workspace, inputs, outputs)
            case TableLookup():
                if self._bind_lookup is None:
                    raise self._other_plan()
                return self._bind_lookup(kernel, inputs, outputs)
            case CopyKernel(pairs):
                return _sequence([self._copier(inputs[a], outputs[b]) for a, b in pairs])
            case FillKernel(value):
                (target,) = outputs
                return self._device.filler(target, value)
            case _:
                assert_never(kernel)

    def run(self, parts: Sequence[KernelCall], scratch: Memory | None = None) -> Launch:
        """Return what runs ``parts`` one after the other, as one kernel where the device can.

        A plan says that several can join. Raises:
            DeviceError: one cannot be loaded.
        """
        if len(parts) == 1 or not self._device.joins:
            return _sequence([self.bind(part, scratch) for part in parts])
        graphs = list(map(self._in_graph, parts))
        kernel = self._device.join([graph for graph, _, _ in graphs])
        inputs = [array for _, inputs, _ in graphs for array in inputs]
        outputs = [array for _, _, outputs in graphs for array in outputs]
        return kernel.bind(inputs, outputs, scratch)

    def _in_graph(self, placed: KernelCall) -> tuple[bytes, Sequence[Any], Sequence[Any]]:
        """Return a kernel as a part of a larger graph: its own, serialised, and where its ports lie."""
        kernel, inputs, outputs = placed
        match kernel:
            case OrtGraph(graph):
                return self._graphs[graph], inputs, outputs
            case Chain():
                one_pass, program, arrays = self._chain(kernel, inputs, outputs)
                node = one_pass.node(program, arrays)
                if node is None:
                    raise self._other_plan()
                return node, arrays[: program.n_inputs], arrays[program.n_inputs :]
            case IntegerTask() | TableLookup() | CopyKernel() | FillKernel():
                raise self._other_plan()
            case _:
                assert_never(kernel)

    def _chain(
        self, kernel: Chain, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[OnePass, NativeProgram, list[Any]]:
        """Return what runs a chain, its program, and what that reads, then makes."""
        program = native_program(self._program.programs[kernel.elementwise.program])
        if self._one_pass is None or program is None:
            raise self._other_plan()
        read, made = kernel.elementwise.ports(inputs, outputs)
        return self._one_pass, program, [*read, *made]

    def _copier(self, source: Block | PutRows | NDArray[Any], target: Any) -> Launch:
        match source:
            case Block():
                return self._device.copier(source, target)
            case np.ndarray():
                return self._device.copier(Block.of(source), Block.of(target))
            case _:
                return self._device.putter(target, source)

    def _other_plan(self) -> DeviceError:
        return DeviceError(
            f"the {self._device.name} device does not run this kernel as the plan has it: "
            "the plan is of a pack as another device runs it"
        )


def _sequence(launches: Sequence[Launch]) -> Launch:
    if len(launches) == 1:
        return launches[0]
    return partial(_one_by_one, tuple(launches)) if launches else nothing


def _one_by_one(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch()
