"""Kernels of the native library for one model: its chains and its quantised layers, bound to memory."""

from collections.abc import Sequence
from typing import Any

from models.network.operators.quantised import Quantised
from models.packs.records.programs import ElementProgram
from pipeline.devices.base import DeviceError, Launch, OwnKernels
from pipeline.devices.elementwise.one_pass import OnePass
from pipeline.devices.elementwise.programs import NativeProgram, native_program
from pipeline.devices.integers.quantised import QuantisedLayers
from pipeline.program.decided import Native


class LibraryKernels(OwnKernels):
    """Those of ``one_pass`` and ``quantised``; where one is None, no piece of its kind can be bound."""

    def __init__(self, one_pass: OnePass | None, quantised: QuantisedLayers | None) -> None:
        self._one_pass = one_pass
        self._native = None if quantised is None else quantised.of_model()
        self._jobs = None if one_pass is None else one_pass.of_model()
        self._programs: dict[ElementProgram, NativeProgram | None] = {}

    def quantised(
        self,
        found: Quantised,
        graph: bytes,
        native: Native,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> Launch:
        if self._native is None:
            raise DeviceError("this device has no kernels for quantised layers")
        return self._native.bind(found, graph, native, inputs, outputs)

    def chain(self, program: ElementProgram, arrays: Sequence[Any]) -> Launch | None:
        native = self._program(program)
        if self._one_pass is None or native is None:
            return None
        return self._one_pass.bind(native, arrays, self._jobs)

    def chain_node(self, program: ElementProgram, arrays: Sequence[Any]) -> bytes | None:
        native = self._program(program)
        if self._one_pass is None or native is None:
            return None
        return self._one_pass.as_node(native, arrays)

    def _program(self, program: ElementProgram) -> NativeProgram | None:
        if program not in self._programs:
            self._programs[program] = native_program(program)
        return self._programs[program]
