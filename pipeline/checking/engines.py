"""Engines of a new pack on memory that holds NaN.

What a kernel reads before another has written it, or after a third has written over it, is in the answer
then.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import LoaderError
from models.packs.pack import Pack
from pipeline.devices.base import Device, DeviceError
from pipeline.devices.device_memory import Memory
from pipeline.execution.errors import EngineError
from pipeline.execution.leases import OwnArena
from pipeline.execution.opened import opened
from pipeline.planning.plan import Plan
from pipeline.program.prepare import prepare
from pipeline.program.program import Program

Arrays = Mapping[str, NDArray[Any]]

# NaN as floats of any size, and far from zero as integers. So many bytes at a time.
_POISON, _BLOCK_BYTES = 0xFF, 1 << 20


class TrialEngines:
    """Engines of ``pack`` on ``device``."""

    def __init__(self, pack: Pack, device: Device) -> None:
        self.device = device
        self._pack = pack

    @cached_property
    def program(self) -> Program:
        return prepare(self._pack, self.device)

    def run(self, plan: Plan, inputs: Arrays, times: int) -> list[Arrays]:
        """Return the outputs of an engine for ``inputs``, so many times, with other inputs between."""
        arena = OwnArena(self.device, plan.arena_bytes)
        answers: list[Arrays] = []
        with opened(self.program, plan, self.device, lease=lambda: arena) as engine:
            # Else weights for the next sweep may lie there.
            poison = partial(_poison, arena.memory) if not plan.stages[0].ahead else _leave
            for _ in range(times):
                if answers:
                    poison()
                    # An error of other inputs is no fault: what it leaves in memory counts.
                    with suppress(EngineError, DeviceError, LoaderError):
                        engine.run(_turned(inputs))
                poison()
                answers.append(engine.run(inputs)[0])
        return answers


def _poison(memory: Memory) -> None:
    for start in range(0, memory.n_bytes, _BLOCK_BYTES):
        n_bytes = min(_BLOCK_BYTES, memory.n_bytes - start)
        memory.write(start, np.full(n_bytes, _POISON, np.uint8))


def _leave() -> None:
    """Leave memory as it is."""


def _turned(inputs: Arrays) -> Arrays:
    """Return ``inputs`` with other numbers of the same kind: floats from the last to the first."""
    return {
        name: array.ravel()[::-1].reshape(array.shape).copy() if array.dtype.kind == "f" else array
        for name, array in inputs.items()
    }
