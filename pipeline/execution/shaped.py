"""A model in several shapes: an engine for each, in one memory, one at a time.

A request takes the shape that it has, or the next longer one (models/packs/shapes.py).
"""

import threading
from collections.abc import Sequence

from models.packs.shapes import PackShapes, ShapeMatch, UnknownShapeError
from pipeline.execution.answering import Answer, Answering
from pipeline.execution.baton import ComputeClaim
from pipeline.execution.engine import Engine
from pipeline.execution.errors import InputError
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
        self._shapes = self.program.pack.shapes
        #: Of the memory: one engine computes at a time.
        self._lock = threading.Lock()

    @property
    def plan(self) -> Plan:
        return self._first.plan

    def run_batch(
        self,
        requests: Sequence[Lane],
        record: Recorder | None,
        claim: ComputeClaim,
        keeps_core: bool,
    ) -> list[_Outcome]:
        """Answer in one inference for each shape, or several where its plan is of fewer requests."""
        if not 0 < len(requests) <= self.plan.batch_size:
            raise ValueError(f"{len(requests)} lanes, planned were 1 to {self.plan.batch_size}")
        outcomes: dict[int, _Outcome] = {}
        groups: dict[int, list[tuple[int, Lane]]] = {}
        for position, request in enumerate(requests):
            try:
                match = self._shapes.find(
                    {name: tensor.shape for name, tensor in request.inputs.items()}
                )
            except UnknownShapeError as exc:
                outcomes[position] = InputError(str(exc))
            else:
                groups.setdefault(match.shape_index, []).append(
                    (position, _matched(self._shapes, request, match))
                )
        with self._lock:
            for index, group in groups.items():
                engine = self._engines[index]
                size = engine.plan.choice.lanes
                for start in range(0, len(group), size):
                    positions, batch = zip(*group[start : start + size], strict=True)
                    answers = engine.run_batch(batch, record, claim, keeps_core)
                    outcomes.update(zip(positions, answers, strict=True))
                    self._fail_with(engine)
        return [outcomes[position] for position in range(len(requests))]

    @property
    def callers(self) -> int:
        return 1

    @property
    def broken(self) -> str:
        return next((engine.broken for engine in self._engines if engine.broken), "")

    @property
    def lost_device(self) -> bool:
        return any(engine.lost_device for engine in self._engines)

    @property
    def reads_nothing(self) -> bool:
        return all(engine.reads_nothing for engine in self._engines)

    @property
    def takes_turns(self) -> bool:
        return self._first.takes_turns

    @property
    def ahead_bytes(self) -> int:
        return 0

    def wake(self) -> None:
        for engine in self._engines:
            engine.wake()

    def statistics(self) -> EngineStatistics:
        """Return what all shapes have done, and their memory; of what they share that of the largest."""
        first, *others = (engine.statistics() for engine in self._engines)
        return EngineStatistics(
            sweeps=first.sweeps + sum(engine.sweeps for engine in others),
            failures=first.failures + sum(engine.failures for engine in others),
            read_bytes=first.read_bytes + sum(engine.read_bytes for engine in others),
            stall_seconds=first.stall_seconds + sum(engine.stall_seconds for engine in others),
            memory={
                **first.memory,
                **{
                    kind: first.memory[kind] + sum(engine.memory[kind] for engine in others)
                    for kind in ("sessions", "objects")
                },
                "scratch": self.plan.memory["scratch"],
                "io": self.plan.memory["io"],
            },
            shapes={
                engine.program.pack.manifest.shape_text: statistics.sweeps
                for engine, statistics in zip(self._engines, (first, *others), strict=True)
            },
        )

    def huge_page_bytes(self) -> int:
        return self._first.huge_page_bytes()

    def settle(self) -> None:
        for engine in self._engines:
            engine.settle()

    def sleep(self) -> bool:
        with self._lock:
            # Each has to know that it must read its weights again.
            slept = [engine.sleep() for engine in self._engines]
        return all(slept)

    @property
    def is_asleep(self) -> bool:
        return any(engine.is_asleep for engine in self._engines)

    def close(self) -> None:
        with self._lock:
            for engine in reversed(self._engines):
                engine.close()
                self._fail_with(engine)

    def _fail_with(self, engine: Engine) -> None:
        """Where ``engine`` is broken, all are: the disk may still write to the memory of all."""
        if engine.broken:
            for sibling in self._engines:
                sibling.fail_with(engine)


def _matched(shapes: PackShapes, request: Lane, match: ShapeMatch) -> Lane:
    """Return ``request`` padded for a shape, and its answer cut, where that is necessary."""
    if match.tokens is None:
        return request
    take = request.take
    return request._replace(
        inputs=shapes.padded(match, request.inputs),
        take=lambda outputs: take(shapes.cut(match, outputs)),
    )
