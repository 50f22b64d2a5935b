"""Runs of a new pack: streamed in the least memory, and with all of its steps in as few launches as can be.

In one engine after the other, each several times with other inputs between, on memory that holds NaN: what
a kernel reads before another has written it, or after a third has written over it, is in the answer then.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import LoaderError
from models.packs.pack import Pack
from pipeline.checking.compare import Tolerance, difference
from pipeline.devices.base import Device, DeviceError
from pipeline.devices.device_memory import Memory
from pipeline.execution.errors import EngineError
from pipeline.execution.leases import OwnArena
from pipeline.execution.opened import opened
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST
from pipeline.planning.joined_launches import apart, joined
from pipeline.planning.make import make_plan, of_weights
from pipeline.planning.plan import Plan
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES

Arrays = Mapping[str, NDArray[Any]]

# What must stay free for pages of libraries: with less they are read again for each kernel.
_LIBRARY_BYTES = 16 << 20
# NaN as floats of any size, and far from zero as integers. So many bytes at a time.
_POISON, _BLOCK_BYTES = 0xFF, 1 << 20
# One engine computes the same sums in the same order again.
_SAME = Tolerance()
_EXACT = Tolerance(0.0)

#: Returns how many bytes this process may still take; None: unknown.
Free = Callable[[], int | None]


class TrialError(Exception):
    """A pack answers one request in two ways; the message says when."""


@dataclass(frozen=True)
class Trials:
    """Answers of ``pack`` on ``device``. ``free``: what this process may take; None: all that it asks for.

    ``notes``: why a plan was not run. ``is_random``: answers differ anyway.
    """

    pack: Pack
    device: Device
    free: Free | None = None
    is_random: bool = False
    notes: list[str] = field(default_factory=list)

    def answer(self, inputs: Arrays) -> Arrays:
        """Return the answer of the smallest plan.

        Raises:
            MemoryError: it takes more than is free. EngineError, DeviceError, LoaderError: it fails.
        """
        return self._run(self._min_plan, inputs, times=1)

    def answers(self, inputs: Arrays) -> Iterator[Arrays]:
        """Yield the answer of the smallest plan, then that of joined launches where it is another one.

        What takes more than is free is not run, but for the smallest plan, and ``notes`` says so.

        Raises:
            TrialError: an engine answers otherwise when it runs again, or with joined launches than
                without. MemoryError, EngineError, DeviceError, LoaderError: as ``answer``.
        """
        smallest = self._checked_answer(self._min_plan, inputs)
        yield smallest
        if not self._fused_plan.runs or not self._fits(self._fused_plan):
            return
        together = self._checked_answer(self._fused_plan, inputs)
        if difference(together, smallest, _EXACT):  # phases of rows may add up in another order
            yield together

    def _checked_answer(self, plan: Plan, inputs: Arrays) -> Arrays:
        """Return the answer of ``plan``, again and again, which is that of its steps one by one."""
        answer = self._run(plan, inputs)
        if plan.runs:
            unfused = self._run(apart(plan), inputs, times=1)
            self._check_same(answer, unfused, "with several steps in one launch than one by one")
        return answer

    @cached_property
    def _program(self) -> Program:
        return prepare(self.pack, self.device)

    @cached_property
    def _min_plan(self) -> Plan:
        plan = fit(self._program, self.device.adapt(ARCHITECTURES["2s"]), LEAST).plan
        lacking = self._lacking(plan)
        if lacking:
            raise MemoryError(lacking)
        return plan

    @cached_property
    def _fused_plan(self) -> Plan:
        """All weights in memory, so that nothing separates steps."""
        architecture = of_weights(self.device.adapt(ARCHITECTURES["pre"]), self._program)
        return joined(self._program, make_plan(self._program, architecture))

    def _fits(self, plan: Plan) -> bool:
        lacking = self._lacking(plan)
        if lacking:
            self.notes.append(f"not run with all weights in memory: that {lacking}")
        return not lacking

    def _lacking(self, plan: Plan) -> str:
        """Return what is missing to run ``plan``, for which the system would end this process."""
        answer = sum(port.n_bytes for port in self.pack.manifest.outputs)
        takes, free = plan.total_bytes + answer, self.free() if self.free else None
        if free is None or takes <= free - _LIBRARY_BYTES:
            return ""
        return (
            f"takes {takes / 2**20:.1f} MiB in addition to the compiler, of which "
            f"{max(free - _LIBRARY_BYTES, 0) / 2**20:.1f} MiB are free"
        )

    def _run(self, plan: Plan, inputs: Arrays, times: int = 2) -> Arrays:
        """Return what an engine answers the last of ``times``, each time the same."""
        arena = OwnArena(self.device, plan.arena_bytes)
        with opened(self._program, plan, self.device, lease=lambda: arena) as engine:
            # Else weights for the next sweep may lie there.
            poison = partial(_poison, arena.memory) if not plan.stages[0].ahead else _leave
            poison()
            answer: Arrays = engine.run(inputs)[0]
            for _ in range(times - 1):
                poison()
                with suppress(
                    EngineError, DeviceError, LoaderError
                ):  # what it leaves in memory counts
                    engine.run(_turned(inputs))
                poison()
                again: Arrays = engine.run(inputs)[0]
                self._check_same(again, answer, "when it runs again")
        return answer

    def _check_same(self, got: Arrays, expected: Arrays, when: str) -> None:
        fault = difference(got, expected, _SAME)
        if fault and not self.is_random:
            raise TrialError(f"answers otherwise {when}: {fault}")


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
