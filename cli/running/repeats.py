"""``run --repeat``: the same request again and again on a warm engine, measured as ``bench`` measures."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass

from cli.printing.steps import bar
from pipeline.benchmark.configuration import BenchConfiguration, PlannedConfiguration
from pipeline.benchmark.contenders import Samples, Streamed, take_turns
from pipeline.benchmark.run import missing_energy, spread
from pipeline.energy import EnergyMeter
from pipeline.execution.engine import Engine
from pipeline.execution.given import Tensors
from pipeline.fitting.wanted import EnginePlanResult
from pipeline.planning.plan import Plan


@dataclass(frozen=True)
class Repeats:
    """What ``runs`` warm runs took, each from rest. Spreads have min, median, p95 and max."""

    runs: int
    delay_ms: Mapping[str, float]
    stall_ms: float
    cpu_seconds: float
    energy_joules: Mapping[str, float] | None

    @classmethod
    def of(cls, samples: Samples) -> "Repeats":
        joules = [energy.joules for energy in samples.energies if energy.joules is not None]
        return cls(
            runs=len(samples.delays),
            delay_ms=_spread([seconds * 1e3 for seconds in samples.delays]),
            stall_ms=statistics.median(samples.stalls) * 1e3,
            cpu_seconds=statistics.median(samples.cpu),
            energy_joules=None if missing_energy([samples]) else _spread(joules),
        )


def repeated(
    engine: Engine,
    plan: Plan,
    inputs: Tensors,
    runs: int,
    meter: EnergyMeter,
) -> Repeats:
    """Run ``engine``, which has answered once, ``runs`` times more after a warm-up.

    Raises:
        LoaderError, DeviceError: a sweep fails.
    """
    configuration = BenchConfiguration(plan.architecture.name, plan.architecture)
    contender = _Unread(PlannedConfiguration(configuration, EnginePlanResult(plan)), engine, inputs)
    contender.settle()
    with bar(f"{runs} runs") as shown:
        (samples,) = take_turns([contender], runs, meter, lambda done: shown.step(done, runs))
    return Repeats.of(samples)


class _Unread(Streamed):
    """Outputs of warm runs, which are not looked at, take no memory."""

    def run(self) -> tuple[float, float]:
        self._used, started = time.process_time(), time.perf_counter()
        _, statistics = self.engine.answer(self._inputs, lambda outputs: None)
        return time.perf_counter() - started, statistics.stall_seconds


def _spread(values: list[float]) -> dict[str, float]:
    return {"min": min(values), **spread(values)}
