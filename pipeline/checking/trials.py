"""Runs of a new pack as it will be served: in three plans.

The plans are the smallest, the one with all weights in memory, whose steps are in as few launches as
possible, and one in between. Each has an engine of its own, one after the other, and answers several times
with other inputs between, on memory that holds NaN: what a kernel reads before another has written it, or
after a third has written over it, is in the answer then.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from loader.errors import LoaderError
from models.packs.pack import Pack
from models.runtime.heap import give_back
from pipeline.checking import Depth
from pipeline.checking.compare import difference
from pipeline.checking.comparison import Tolerance
from pipeline.checking.engines import Arrays, TrialEngines
from pipeline.devices.base import Device, DeviceError
from pipeline.execution.errors import EngineError
from pipeline.fitting.fit import fit, heuristic_plan
from pipeline.fitting.wanted import LEAST, Wanted
from pipeline.planning.joined_launches import apart, joined
from pipeline.planning.make import make_plan, of_weights
from pipeline.planning.plan import Plan
from pipeline.schedule.architectures import ARCHITECTURES

# What must stay free for pages of libraries: with less they are read again for each kernel.
_LIBRARY_BYTES = 16 << 20

#: Returns how many bytes this process may still take; None: unknown.
Free = Callable[[], int | None]


class TrialError(Exception):
    """A pack fails, or answers one request in two ways; the message says when."""


class TrialSetting(NamedTuple):
    """What a pack ran in: ``plan`` in words, and how many ``threads`` computed."""

    plan: str
    threads: int

    def __str__(self) -> str:
        return f"{self.plan} and {self.threads} thread{'s' if self.threads > 1 else ''}"


class TrialAnswer(NamedTuple):
    """The ``outputs`` of a pack in a ``setting``."""

    setting: TrialSetting
    outputs: Arrays


@dataclass(frozen=True)
class Trials:
    """Answers of ``pack`` on ``device``.

    ``depth``: in which plans. ``free``: what this process may take; None: all that it asks for. ``once``:
    in each plan once. ``notes``: which plans were left out, and why.
    """

    pack: Pack
    device: Device
    depth: Depth
    free: Free | None = None
    once: bool = False
    notes: list[str] = field(default_factory=list)

    def answer(self, inputs: Arrays) -> Arrays:
        """Return the answer of the smallest plan.

        Raises:
            MemoryError: it takes more than is free. TrialError: it fails.
        """
        with _named(TrialSetting(_SMALLEST, self.device.threads)):
            (outputs,) = self._engines.run(self._min_plan, inputs, 1)
        return outputs

    def answers(
        self, inputs: Arrays, tolerance: Tolerance, random: str = ""
    ) -> Iterator[TrialAnswer]:
        """Yield the answer in each plan.

        A plan that takes more than is free is not run, but for the smallest, and ``notes`` says so.

        Args:
            inputs: of the request, by name.
            tolerance: how far answers in one setting may be apart.
            random: what draws numbers, so that answers differ anyway; else empty.

        Raises:
            TrialError: an engine fails, or answers otherwise when it runs again, or with joined launches
                than without. MemoryError: the smallest plan takes more than is free.
        """
        plans = self._plans
        give_back()  # what planning took
        for name, plan in plans.items():
            setting = TrialSetting(name, self.device.threads)
            if name == _SMALLEST or self._fits(plan, name):
                with _named(setting):
                    outputs = self._checked_answer(plan, inputs, None if random else tolerance)
                yield TrialAnswer(setting, outputs)

    def _checked_answer(self, plan: Plan, inputs: Arrays, tolerance: Tolerance | None) -> Arrays:
        """Return the answer of ``plan``, again and again, which is that of its steps one by one."""
        if self.once:
            return self._engines.run(plan, inputs, 1)[0]
        answer, again = self._engines.run(plan, inputs, 2)
        if tolerance is None:
            return again
        faults = {"when it runs again": difference(again, answer, tolerance)}
        if plan.runs:
            (unfused,) = self._engines.run(apart(plan), inputs, 1)
            when = "with several steps in one launch than one by one"
            faults[when] = difference(answer, unfused, tolerance)
        for when, fault in faults.items():
            if fault:
                raise TrialError(f"answers otherwise {when}: {fault}")
        return again

    @cached_property
    def _engines(self) -> TrialEngines:
        return TrialEngines(self.pack, self.device)

    @cached_property
    def _plans(self) -> Mapping[str, Plan]:
        """The plans by their names, the smallest first; those that are one are here once."""
        plans = {_SMALLEST: self._min_plan}
        if self.depth == "full":
            plans[_BETWEEN] = self._plan_between
        if self.depth == "full" or self._resident_plan.runs:
            plans[_RESIDENT] = self._resident_plan
        names = list(plans)
        return {
            name: plan
            for position, (name, plan) in enumerate(plans.items())
            if all(plan != plans[earlier] for earlier in names[:position])
        }

    @cached_property
    def _min_plan(self) -> Plan:
        plan = fit(self._engines.program, self.device.adapt(ARCHITECTURES["2s"]), LEAST).plan
        lacking = self._lacking(plan)
        if lacking:
            raise MemoryError(lacking)
        return plan

    @cached_property
    def _plan_between(self) -> Plan:
        """What half of the memory between the other two makes of the network: a part of it is resident."""
        smallest, largest = self._min_plan, self._resident_plan
        halfway = Wanted(total_bytes=(smallest.total_bytes + largest.total_bytes) // 2)
        program = self._engines.program
        return heuristic_plan(program, smallest.architecture, halfway, smallest).plan

    @cached_property
    def _resident_plan(self) -> Plan:
        """All weights in memory, so that nothing separates steps."""
        program = self._engines.program
        architecture = of_weights(self.device.adapt(ARCHITECTURES["pre"]), program)
        return joined(program, make_plan(program, architecture))

    def _fits(self, plan: Plan, name: str) -> bool:
        lacking = self._lacking(plan)
        if lacking:
            self.notes.append(f"not run with {name}: that {lacking}")
        return not lacking

    def _lacking(self, plan: Plan) -> str:
        """Return what is missing to run ``plan``, for which the system would end this process."""
        answer = sum(port.n_bytes for port in self.pack.manifest.outputs)
        takes = plan.total_bytes + answer
        free = self.free() if self.free else None
        if free is None or takes <= free - _LIBRARY_BYTES:
            return ""
        return (
            f"takes {takes / 2**20:.1f} MiB in addition to the compiler, of which "
            f"{max(free - _LIBRARY_BYTES, 0) / 2**20:.1f} MiB are free"
        )


# The plans, as messages name them.
_SMALLEST = "the smallest plan"
_BETWEEN = "half of the memory"
_RESIDENT = "all weights in memory"


@contextmanager
def _named(setting: TrialSetting) -> Iterator[None]:
    """Name the setting in which a pack fails.

    Raises:
        TrialError: it does.
    """
    try:
        yield
    except TrialError as exc:
        raise TrialError(f"with {setting} {exc}") from exc
    except (EngineError, DeviceError, LoaderError) as exc:
        raise TrialError(f"with {setting} fails where ONNX Runtime answers: {exc}") from exc
