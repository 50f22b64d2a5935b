"""A model in several shapes: an engine for each, in one memory, one at a time.

A request takes the shape that it has, or the next longer one (models/packs/shapes.py).
"""

import threading
from collections.abc import Sequence
from functools import partial

from models.packs.shapes import Fitting, PackShapes, UnknownShapeError
from pipeline.execution.answering import Answer, Answering
from pipeline.execution.baton import FREE, ComputeClaim
from pipeline.execution.engine import Engine
from pipeline.execution.errors import InputError
from pipeline.execution.given import Arrays, Take
from pipeline.execution.lane import Lane
from pipeline.execution.statistics import EngineStatistics
from pipeline.planning.plan import Plan
from pipeline.program.program import Program
from pipeline.schedule.trace import Recorder

_Outcome = Answer | Exception


class ShapedEngine(Answering):
    """Answers with the ``engines`` of all shapes, the largest first, whose memory the others use."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = tuple(engines)
        self._first = engines[0]
        self.program: Program = self._first.program
        self._shapes = PackShapes.of(self.program.pack)
        #: Of the memory: one engine computes at a time.
        self._lock = threading.Lock()

    @property
    def plan(self) -> Plan:
        return self._first.plan

    def run_lanes(
        self,
        lanes: Sequence[Lane],
        record: Recorder | None = None,
        claim: ComputeClaim = FREE,
        *,
        keeps_core: bool = True,
    ) -> list[_Outcome]:
        """Answer as Answering says, in a sweep for each shape, or several where it has fewer lanes."""
        if not 0 < len(lanes) <= self.plan.batch_size:
            raise ValueError(f"{len(lanes)} lanes, planned were 1 to {self.plan.batch_size}")
        outcomes: dict[int, _Outcome] = {}
        groups: dict[int, list[tuple[int, Lane]]] = {}
        for position, lane in enumerate(lanes):
            try:
                fitting = self._shapes.find(
                    {name: each.shape for name, each in lane.inputs.items()}
                )
            except UnknownShapeError as exc:
                outcomes[position] = InputError(str(exc))
            else:
                groups.setdefault(fitting.number, []).append(
                    (position, self._fitted(lane, fitting))
                )
        with self._lock:
            for number, group in groups.items():
                engine = self._engines[number]
                most = engine.plan.choice.lanes
                for start in range(0, len(group), most):
                    positions, part = zip(*group[start : start + most], strict=True)
                    found = engine.run_lanes(part, record, claim, keeps_core=keeps_core)
                    outcomes.update(zip(positions, found, strict=True))
                    self._fail_with(engine)
        return [outcomes[position] for position in range(len(lanes))]

    def _fitted(self, lane: Lane, fitting: Fitting) -> Lane:
        """Return ``lane`` padded for a shape, and its answer cut, where that is necessary."""
        if fitting.tokens is None:
            return lane
        take = partial(_taken, self._shapes, fitting, lane.take)
        return lane._replace(inputs=self._shapes.padded(fitting, lane.inputs), take=take)

    @property
    def callers(self) -> int:
        return 1

    @property
    def broken(self) -> str:
        return next((each.broken for each in self._engines if each.broken), "")

    @property
    def lost_device(self) -> bool:
        return any(each.lost_device for each in self._engines)

    @property
    def reads_nothing(self) -> bool:
        return all(each.reads_nothing for each in self._engines)

    @property
    def takes_turns(self) -> bool:
        return self._first.takes_turns

    @property
    def ahead_bytes(self) -> int:
        return 0

    def wake(self) -> None:
        for each in self._engines:
            each.wake()

    def statistics(self) -> EngineStatistics:
        """Return what all shapes have done, and their memory; of what they share that of the largest."""
        first, *others = (each.statistics() for each in self._engines)
        return EngineStatistics(
            sweeps=first.sweeps + sum(each.sweeps for each in others),
            failures=first.failures + sum(each.failures for each in others),
            read_bytes=first.read_bytes + sum(each.read_bytes for each in others),
            stall_seconds=first.stall_seconds + sum(each.stall_seconds for each in others),
            memory={
                **first.memory,
                **{
                    kind: first.memory[kind] + sum(each.memory[kind] for each in others)
                    for kind in ("sessions", "objects")
                },
                "scratch": self.plan.memory["scratch"],
                "io": self.plan.memory["io"],
            },
        )

    def huge_page_bytes(self) -> int:
        return self._first.huge_page_bytes()

    def settle(self) -> None:
        for each in self._engines:
            each.settle()

    def sleep(self) -> bool:
        with self._lock:
            # Each has to know that it must read its weights again.
            slept = [each.sleep() for each in self._engines]
        return all(slept)

    @property
    def is_asleep(self) -> bool:
        return any(each.is_asleep for each in self._engines)

    def close(self) -> None:
        with self._lock:
            for each in reversed(self._engines):
                each.close()
                self._fail_with(each)

    def _fail_with(self, engine: Engine) -> None:
        """Where ``engine`` is broken, all are: the disk may still write to the memory of all."""
        if engine.broken:
            for each in self._engines:
                each.fail_with(engine)


def _taken(shapes: PackShapes, fitting: Fitting, take: Take[object], outputs: Arrays) -> object:
    return take(shapes.cut(fitting, outputs))
