"""Plans run against each other, in turns with ``pre``: no estimate orders what is nearly equal.

Seed 003, Section V-D, measures candidates and keeps the best. Here the first of those that an estimate
ranks run, by successive halving; finalists stay open between rounds, since to open one again costs a pass
of checksums and new memory. A round is a pass of ``pre`` and one of each candidate: what else the machine
does meets all alike. A service, in whose memory one plan is open at a time, runs the same race with
another reference (server/repository/tuning.py).
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import inf
from statistics import median, quantiles
from typing import Generic, NamedTuple, Self, TypeVar

from loader.errors import LoaderError
from loader.pool.pool import ReadPool
from loader.readers.disk import REAL_DISK, Disk
from pipeline.devices.base import Device, DeviceError
from pipeline.execution.engine import Engine
from pipeline.execution.opened import opened
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.plan import Choice, Plan
from pipeline.profiles.profile import MeasuredPlan
from pipeline.profiles.times import plan_key
from pipeline.program.program import Program

#: Candidates of a race, fewer where passes are long.
MAX_CANDIDATES = 8
# Rounds between halvings, and of the last candidates together at most.
_ROUNDS = 3
_MAX_ROUNDS = 15
# A round in which a pass of ``pre`` takes longer than usual by more is run again, once for each other one.
_UNEVEN = 1.05
# Of the last ones, ratios whose quartiles are further apart cannot be told from each other.
_UNSURE = 0.12

#: Runs a pass and returns its seconds.
Pass = Callable[[], float]
#: What a pass is run with: a Pass, or what else the one who runs it needs.
R = TypeVar("R")
T = TypeVar("T")
#: What to run next; the seconds of its pass are sent, None for one that was interrupted.
Passes = Generator[R, float | None, T]


class RacedPlan(NamedTuple):
    """What a profile keeps of a plan, which is large itself; ``key``: its ``plan_key``."""

    key: str
    architecture: str
    choice: Choice
    total_bytes: int

    @classmethod
    def of(cls, plan: Plan) -> Self:
        return cls(plan_key(plan), plan.architecture.name, plan.choice, plan.total_bytes)


@dataclass(eq=False)
class Runner(Generic[R]):
    """A plan in a race. ``ratios``: of its passes to those of the reference in the same round."""

    plan: RacedPlan
    run: R
    ratios: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return median(self.ratios) if self.ratios else inf

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of its ratios."""
        if len(self.ratios) == 1:
            return self.ratios[0], self.ratios[0]
        low, _, high = quantiles(self.ratios, n=4, method="inclusive")
        return low, high


class Race(Generic[R]):
    """Runs ``runners`` and ``reference`` for about ``seconds`` of passes. Pure: others run these.

    ``reference``: `pre`, or a plan whose ratio to that is known. ``usual``: seconds that its pass takes;
    None: the first rounds say it.
    """

    def __init__(
        self, reference: R, runners: Sequence[Runner[R]], seconds: float, usual: float | None = None
    ) -> None:
        self._reference = reference
        self._live = list(runners)
        self._left = seconds
        self._usual = [] if usual is None else [usual]
        #: Of the last pass of the reference, which the next round begins with.
        self._last: float | None = None
        #: Whether the machine was quiet enough to say which of the last was better.
        self.is_sure = True

    @property
    def reference_seconds(self) -> float:
        """What a pass of the reference takes."""
        return median(self._usual)

    def winner(self: "Race[Pass]") -> Runner[Pass]:
        """Run all passes here; return the runner of the least ratio."""
        passes, seconds = self.passes(), None
        while True:
            try:
                seconds = passes.send(seconds)()
            except StopIteration as end:
                best: Runner[Pass] = end.value
                return best

    def passes(self) -> Passes[R, Runner[R]]:
        """Yield what to run next, as ``Passes`` says; return the runner of the least ratio."""
        while len(self._live) > 2:
            yield from self._rounds(1, _ROUNDS, self._left / 2)
            self._live.sort(key=lambda runner: runner.ratio)
            self._live = self._live[: max((len(self._live) + 1) // 2, 2)]
        done = min(len(runner.ratios) for runner in self._live)
        yield from self._rounds(
            max(_ROUNDS - done, 1), max(_MAX_ROUNDS - done, _ROUNDS), self._left
        )
        best = min(self._live, key=lambda runner: runner.ratio)
        low, high = best.spread
        self.is_sure = high - low <= _UNSURE * best.ratio
        return best

    def _rounds(self, least: int, most: int, seconds: float) -> Passes[R, None]:
        """Run ``least`` to ``most`` rounds that count, in about ``seconds`` if these are enough."""
        until, again, done = self._left - seconds, most, 0
        while done < least or (done < most and self._left > until):
            try:
                is_even = yield from self._round(again > 0 and self._left > until)
            except _InterruptedError:
                self._last = None
                continue
            done, again = done + is_even, again - (not is_even)

    def _round(self, may_repeat: bool) -> Passes[R, bool]:
        """Run one round; return whether it counts: where it ``may_repeat``, only with a usual reference."""
        before = (yield from self._pass(self._reference)) if self._last is None else self._last
        took: dict[Runner[R], float] = {}
        for runner in self._live:
            took[runner] = yield from self._pass(runner.run)
        after = self._last = yield from self._pass(self._reference)
        # What runs after a cold neighbour pays for it.
        self._live = [*self._live[1:], *self._live[:1]]
        usual = median(self._usual) if self._usual else min(before, after)
        if may_repeat and max(before, after) > _UNEVEN * max(usual, min(before, after)):
            self._last = None
            return False
        self._usual.append((before + after) / 2)
        for runner, seconds in took.items():
            runner.ratios.append(2 * seconds / (before + after))
        return True

    def _pass(self, run: R) -> Passes[R, float]:
        seconds = yield run
        if seconds is None:
            raise _InterruptedError
        self._left -= seconds
        return seconds


class _InterruptedError(Exception):
    """A pass was interrupted: its round runs again."""


@dataclass(frozen=True)
class RaceOutcome:
    """``best`` of a race; None: all failed. ``others`` lost. ``is_sure``: the machine was quiet enough."""

    best: MeasuredPlan | None
    others: tuple[MeasuredPlan, ...]
    is_sure: bool

    @property
    def candidates(self) -> int:
        return len(self.others) + (self.best is not None)


def race(
    program: Program,
    plans: Iterable[Plan],
    resident: Engine,
    device: Device,
    pool: ReadPool,
    seconds: float,
    *,
    disk: Disk = REAL_DISK,
    usual: float | None = None,
) -> RaceOutcome:
    """Return which of ``plans``, open at once, is fastest in about ``seconds``.

    ``resident``: an engine of ``pre``; ``usual``: seconds of its passes. A plan that cannot be opened does
    not take part.

    Raises:
        LoaderError, DeviceError: a pass of one that takes part fails.
    """
    inputs = random_inputs(program)

    def passes(engine: Engine) -> Pass:
        def run() -> float:
            seconds = engine.run(inputs)[1].delay_seconds
            engine.settle()  # what it reads ahead is read in idle time
            return seconds

        return run

    with ExitStack() as stack:
        runners: list[Runner[Pass]] = []
        for plan in plans:
            try:
                reader = disk.open(program.pack.weights_path)
                engine = stack.enter_context(opened(program, plan, device, pool, reader))
                run = passes(engine)
                run()  # the first one touches all memory, and verifies
            except (LoaderError, DeviceError, MemoryError):
                continue
            runners.append(Runner(RacedPlan.of(plan), run))
        if not runners:
            return RaceOutcome(None, (), is_sure=True)
        contest = Race(passes(resident), runners, seconds, usual)
        best = contest.winner()
    *others, winner = measured_plans(runners, best)
    return RaceOutcome(winner, tuple(others), contest.is_sure)


def measured_plans(
    runners: Sequence[Runner[R]], best: Runner[R], scale: float = 1.0
) -> tuple[MeasuredPlan, ...]:
    """Return what a profile keeps of ``runners``, ``best`` last; ``scale``: the reference's ratio to `pre`.

    Those that left early ran in few rounds only, and are no better than what was better then.
    """
    others = (item for item in runners if item is not best)
    losers = (measured_plan(item, best.ratio, scale) for item in others)
    return (*losers, measured_plan(best, scale=scale))


def measured_plan(runner: Runner[R], min_ratio: float = 0.0, scale: float = 1.0) -> MeasuredPlan:
    """Return what a profile keeps of ``runner``; its ratio to the reference is at least ``min_ratio``.

    ``scale``: the ratio of the reference to `pre`.
    """
    low, high = runner.spread
    return MeasuredPlan(
        **runner.plan._asdict(),
        ratio=round(scale * max(runner.ratio, min_ratio), 4),
        spread=(round(scale * low, 4), round(scale * high, 4)),
        rounds=len(runner.ratios),
    )
