"""What answers requests for one model: an engine, or a pipeline of several."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from pipeline.execution.baton import FREE, ComputeClaim
from pipeline.execution.given import Take, Tensors
from pipeline.execution.lane import Lane
from pipeline.execution.statistics import EngineStatistics, SweepStatistics
from pipeline.planning.plan import Plan
from pipeline.program.program import Program
from pipeline.schedule.trace import Recorder

T = TypeVar("T")


class Answering(Protocol):
    """As Engine (pipeline/execution/engine.py); up to ``callers`` threads may call ``answer`` at a time."""

    @property
    def program(self) -> Program: ...

    @property
    def plan(self) -> Plan: ...

    @property
    def callers(self) -> int: ...

    @property
    def broken(self) -> str: ...

    @property
    def reads_nothing(self) -> bool: ...

    @property
    def takes_turns(self) -> bool: ...

    @property
    def lost_device(self) -> bool: ...

    @property
    def ahead_bytes(self) -> int: ...

    def run(
        self,
        inputs: Tensors,
        deadline: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        record: Recorder | None = None,
        during: AbstractContextManager[object] | None = None,
    ) -> tuple[dict[str, NDArray[Any]], SweepStatistics]: ...

    def answer(
        self,
        inputs: Tensors,
        take: Take[T],
        deadline: float | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        record: Recorder | None = None,
        during: AbstractContextManager[object] | None = None,
    ) -> tuple[T, SweepStatistics]: ...

    def run_lanes(
        self,
        lanes: Sequence[Lane],
        record: Recorder | None = None,
        during: AbstractContextManager[object] | None = None,
        claim: ComputeClaim = FREE,
        *,
        keeps_core: bool = True,
    ) -> list[tuple[Any, SweepStatistics] | Exception]: ...

    def wake(self) -> None: ...

    def statistics(self) -> EngineStatistics: ...

    def huge_page_bytes(self) -> int: ...

    def settle(self) -> None: ...

    def close(self) -> None: ...
