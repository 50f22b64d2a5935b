"""Plans of the models that serve, raced in idle time in the memory that each has.

Candidates take the place of the plan that serves, one after the other, so the budget
holds. A request is answered with the plan that is there, which is as right as any other; the pass that runs
ends at its next kernel, and the race goes on when the service is idle again. There is no room for `pre`, so
plans are compared with one whose ratio to it was measured.

Invariant: outside of ``_race`` a model has the plan that it had before, or the winner of its race.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

from pipeline.budget.budget import Budget
from pipeline.budget.errors import RefusedError
from pipeline.budget.holdings import Holding
from pipeline.execution.given import Arrays
from pipeline.execution.shielded import run_to_completion
from pipeline.fitting.wanted import EnginePlanResult
from pipeline.measuring.plan_races import Entrant, race_length
from pipeline.measuring.races import Passes, Race, Runner, measured_plans
from pipeline.measuring.sweeps import random_inputs
from pipeline.planning.plan import Choice
from pipeline.profiles.profile import MeasuredPlan
from pipeline.program.program import letting_go
from server.causes import because
from server.faults import FAILURES
from server.repository.entry import Entry
from server.repository.executor import Executor
from server.repository.fleet import Place
from server.repository.models import Models
from server.repository.planning_threads import PlanningThreads
from server.repository.preparing import Prepared, Preparer
from server.repository.reconciling import Reconciler
from server.repository.worker import Worker

_log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
# The service is idle when no request has used any model for so long.
_IDLE_SECONDS = 5.0
# Passes of a plan each time that it is opened: so many, in about so many seconds.
_MAX_PASSES, _VISIT_SECONDS = 5, 0.05
# A plan that was measured is raced all the same if it leaves more than one part in so many of its limit.
_UNUSED = 16
# To open a plan may take this part of the shortest time that a request had for its answer; it takes so long
# at least.
_OPENING_SHARE, _OPENING_SECONDS = 0.25, 0.1
# A plan that a request has met is closed when none uses it, at the latest after so long.
_LONGEST_USE_SECONDS, _POLL_SECONDS = 5.0, 0.02
# Requests that take so many times what was measured show that it no longer holds.
_CHANGED = 1.2
# A race without a result, or whose result no longer holds, is run again after so long.
_AGAIN_SECONDS = 600.0

_NO_REFERENCE = (
    "its profile has no measured plan within this memory, or there is no other plan; `layerstream profile` "
    "measures the smallest"
)

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class _Served:
    """The plan of a model when its race started; ``limit_bytes``: what it was planned within.

    Plans are large, so those of a race are kept by their choices.
    """

    worker: Worker
    prepared: Prepared
    place: Place
    choice: Choice
    limit_bytes: int


@dataclass
class _Contest:
    """A race of plans of ``entry`` in the place of ``home``.

    ``reference``: what was measured of the plan with which others are compared. ``following``: what runs
    next. ``opening_seconds``: the longest that a plan took to open.
    """

    entry: Entry
    home: _Served
    reference: MeasuredPlan
    runners: list[Runner[Choice]]
    race: Race[Choice]
    inputs: Arrays
    passes: Passes[Choice, Runner[Choice]] = field(init=False)
    following: Choice = field(init=False)
    opening_seconds: float = _OPENING_SECONDS

    def __post_init__(self) -> None:
        self.passes = self.race.passes()
        self.following = next(self.passes)

    @property
    def holds(self) -> bool:
        """Whether the model still serves as when the race started."""
        now, then = _served(self.entry), self.home
        return (
            now is not None
            and now.worker is then.worker
            and now.prepared is then.prepared
            and (now.choice, now.limit_bytes) == (then.choice, then.limit_bytes)
        )


def _served(entry: Entry) -> _Served | None:
    """Return the plan of ``entry`` if it may be raced: of one engine, final, and with weights to read."""
    instance, result = entry.instance, entry.fitted
    if instance is None or not instance.serves or not isinstance(result, EnginePlanResult):
        return None
    plan, limit = result.plan, result.limit_bytes
    if result.heuristic or plan.batch_size > 1 or not plan.read_bytes or limit is None:
        return None
    assert instance.worker is not None
    return _Served(instance.worker, instance.prepared, instance.place, plan.choice, limit)


@dataclass(frozen=True)
class _Raced:
    """How a race within ``limit_bytes`` ended: what a pass of its winner took; None: it had no result.

    ``searched_on``: of the profile after it. It is not run again before ``again_at``.
    """

    limit_bytes: int
    searched_on: str
    seconds: float | None
    again_at: float


class Tuner:
    """Races plans of ``models`` within ``budget``, of one model at a time.

    ``limit_seconds``: of a pass. ``clock``: that of time.monotonic.
    """

    def __init__(
        self,
        models: Models,
        *,
        budget: Budget,
        reconciler: Reconciler,
        planning: PlanningThreads,
        preparer: Preparer,
        executor: Executor,
        limit_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._models = models
        self._budget = budget
        self._reconciler = reconciler
        self._planning = planning
        self._preparer = preparer
        self._executor = executor
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._sleep = sleep
        #: The race that has begun and not ended.
        self._contest: _Contest | None = None
        self._raced: dict[str, _Raced] = {}
        #: Why a model is not raced, as the log had it last.
        self._refusals: dict[str, str] = {}

    async def run(self) -> None:
        """Race whenever the service is idle; runs until cancelled."""
        while True:
            await self._sleep(_CHECK_SECONDS)
            try:
                await self.step()
            except Exception:  # noqa: BLE001  after any error the service goes on, and looks again
                _log.exception("plans cannot be raced")

    async def step(self) -> str | None:
        """Race a model that is due, if the service is idle; return its name, None: none was raced."""
        if self._contest is not None and not self._contest.holds:
            self._contest = None
        if not self._is_idle():
            return None
        entry = self._contest.entry if self._contest is not None else self._next_due()
        if entry is not None:
            await self._reconciler.in_idle_time(partial(self._race, entry))
        return None if entry is None else entry.name

    def _is_used(self) -> bool:
        """Return whether a request uses a model; any thread may ask."""
        return any(len(entry.uses) for entry in list(self._models.values()))

    def _is_idle(self) -> bool:
        since = max((entry.uses.used_at for entry in self._models.values()), default=math.inf)
        return not self._is_used() and self._clock() - since >= _IDLE_SECONDS

    def _next_due(self) -> Entry | None:
        return next((entry for entry in self._models.values() if self._is_due(entry)), None)

    def _is_due(self, entry: Entry) -> bool:
        """Return whether plans of ``entry`` are to be raced."""
        served = _served(entry)
        if served is None or self._is_refused(entry.name, served):
            return False
        worker, result = served.worker, served.place.fitted
        limit, raced, predicted = served.limit_bytes, self._raced.get(entry.name), result.prediction
        measured = None if predicted is None or not predicted.measured else predicted.sweep_seconds
        if raced is not None and (raced.limit_bytes, raced.searched_on) == _raced_on(served):
            if self._clock() < raced.again_at or raced.seconds is None:
                return self._clock() >= raced.again_at
            measured = raced.seconds
        elif (limit - result.plan.total_bytes) * _UNUSED > limit:
            return True
        steady = worker.served.steady_seconds
        return measured is None or (steady is not None and steady > _CHANGED * measured)

    def _is_refused(self, name: str, served: _Served) -> bool:
        """Return whether the model cannot be raced, and log why, once."""
        reason = self._refusal(served)
        if self._refusals.get(name, "") != reason:
            self._refusals[name] = reason
            if reason:
                _log.info("model %s: its plans are not raced: %s", name, reason)
        return bool(reason)

    def _refusal(self, served: _Served, opening_seconds: float = _OPENING_SECONDS) -> str:
        """Return why a model cannot be raced whose plans take so long to open; empty: it can."""
        model, min_seconds = served.prepared, served.worker.min_limit_seconds
        if model.profile is None or not model.profile.exact:
            return (
                f"no profile of this machine; `layerstream profile {model.pack.folder}` makes one"
            )
        if opening_seconds > _OPENING_SHARE * min_seconds:
            return f"to open one takes {opening_seconds:.2f} s, and a request had {min_seconds:g} s"
        return ""

    # A race, or a part of it: until the first request.

    async def _race(self, entry: Entry) -> None:
        """Race plans of ``entry`` until that ends or a request comes; nothing else changes models."""
        with because("plans are raced", by_server=True):
            try:
                if self._contest is None:
                    self._contest = await self._started(entry)
                if self._contest is None:
                    self._end(entry, None, math.inf)
                    _log.info("model %s: its plans are not raced: %s", entry.name, _NO_REFERENCE)
                    return
                with letting_go(self._contest.home.prepared.program):
                    await self._continue(self._contest)
            except FAILURES as exc:
                self._end(entry, None)
                _log.warning("model %s: its plans are not raced: %s", entry.name, exc)

    async def _started(self, entry: Entry) -> _Contest | None:
        """Return a race of plans of ``entry``; None where there are none to compare."""
        home = _served(entry)
        if home is None:
            return None
        model = home.prepared
        assert model.profile is not None
        of = model, home.limit_bytes, home.choice
        entrants = await self._planning.run(lambda: self._preparer.race(*of))
        plans = [entrant.plan for entrant in entrants if self._fits(entry.name, home, entrant)]
        if len(plans) < 2 or plans[0] != entrants[0].plan:
            return None
        measured = {plan.key: plan for plan in model.profile.plans}
        reference = measured[plans[0].key]
        runners = [Runner(plan, plan.choice) for plan in plans[1:]]
        seconds, _ = race_length(reference.ratio * model.profile.resident.median)
        return _Contest(
            *(entry, home, reference, runners),
            Race(reference.choice, runners, seconds),
            random_inputs(model.program),
        )

    def _fits(self, name: str, home: _Served, entrant: Entrant) -> bool:
        """Return whether ``entrant`` may take the place of ``home``.

        Where models share an arena, a plan within the same bytes may have more that is its own.
        """
        others = self._budget.without([name])
        max_bytes = others.free_bytes
        if home.place.in_turns:
            max_bytes = min(max_bytes, sum(others.added(home.place.holding).values()))
        added = others.added(Holding(entrant.memory, home.place.in_turns))
        return sum(added.values()) <= max_bytes

    async def _continue(self, contest: _Contest) -> None:
        """Run ``contest`` as long as no request comes; then the plan that served serves again."""
        best, patience = None, _LONGEST_USE_SECONDS
        try:
            best = await self._run(contest)
        except asyncio.CancelledError:
            patience = 0.0  # another change waits
            raise
        finally:
            if best is None:
                await run_to_completion(self._go_home(contest, patience))
        if best is not None:
            await run_to_completion(self._keep(contest, best))

    async def _run(self, contest: _Contest) -> Runner[Choice] | None:
        """Run ``contest``; return which plan was best, None: a request has interrupted it."""
        while True:
            seconds = await self._visit(contest, contest.following)
            try:
                contest.following = contest.passes.send(seconds)
            except StopIteration as end:
                best: Runner[Choice] = end.value
                return best
            if seconds is None:
                return None

    async def _visit(self, contest: _Contest, choice: Choice) -> float | None:
        """Return what a pass of the plan of ``choice`` takes; None: a request came."""
        if _choice(contest.entry) != choice:
            model_plan = await self._model_plan(contest.home, choice)
            if self._is_used():
                return None
            started = self._clock()
            await self._executor.reopen(contest.entry, model_plan, logging.DEBUG)
            contest.opening_seconds = max(contest.opening_seconds, self._clock() - started)
            if reason := self._refusal(contest.home, contest.opening_seconds):
                raise RefusedError(reason)
            # The first one touches all memory, and verifies.
            if await self._pass(contest) is None:
                return None
        took: list[float] = []
        until = self._clock() + _VISIT_SECONDS
        while not took or (len(took) < _MAX_PASSES and self._clock() < until):
            seconds = await self._pass(contest)
            if seconds is None:
                return None
            took.append(seconds)
        return median(took)

    async def _pass(self, contest: _Contest) -> float | None:
        """Return the seconds of a pass of the plan that is open; None: a request came."""
        if self._is_used():
            return None
        worker = contest.home.worker
        return await worker.measure(contest.inputs, self._limit_seconds, self._is_used)

    async def _model_plan(self, home: _Served, choice: Choice) -> Place:
        """Return the plan of ``choice`` in the place of ``home``."""
        planned = partial(self._preparer.planned, home.prepared, choice)
        result = await self._planning.run(planned)
        return Place.of(replace(result, limit_bytes=home.limit_bytes), home.place.in_turns)

    async def _go_home(self, contest: _Contest, patience_seconds: float) -> None:
        """Let the plan that served serve again, when no request uses another one, or after a while."""
        entry, home = contest.entry, contest.home
        until = self._clock() + patience_seconds
        while len(entry.uses) and self._clock() < until:
            await self._sleep(_POLL_SECONDS)
        if entry.serves and _choice(entry) != home.choice:
            model_plan = await self._model_plan(home, home.choice)
            await self._executor.try_reopen(entry, model_plan, logging.DEBUG)

    async def _keep(self, contest: _Contest, best: Runner[Choice]) -> None:
        """Keep what was measured, and serve with the winner: ``best``, or the reference if it is faster."""
        entry, race, reference = contest.entry, contest.race, contest.reference
        if not race.is_sure:
            await self._go_home(contest, _LONGEST_USE_SECONDS)
            self._end(entry, None)
            _log.info("model %s: raced: the machine was too uneven to keep a result", entry.name)
            return
        plans = measured_plans(contest.runners, best, reference.ratio)
        before = contest.home.prepared
        model = await self._planning.run(lambda: self._preparer.measured(before, plans))
        if entry.instance is not None:
            entry.instance.prepared = model
        self._end(entry, race.reference_seconds * min(best.ratio, 1.0))
        winner = reference if best.ratio >= 1.0 else plans[-1]
        home = replace(contest.home, prepared=model)
        model_plan = await self._model_plan(home, winner.choice)
        _log.info(
            "model %s: raced %d plans: the fastest takes %.2f times a pass with all weights in memory",
            *(entry.name, len(plans) + 1, winner.ratio),
        )
        if _choice(entry) == winner.choice:
            assert entry.instance is not None
            entry.instance.place = model_plan  # the same plan, with what was measured of it
        elif winner.choice == contest.home.choice:
            await self._executor.try_reopen(entry, model_plan, logging.DEBUG)
        else:
            await self._executor.try_reopen(entry, model_plan)

    def _end(
        self, entry: Entry, seconds: float | None, pause_seconds: float = _AGAIN_SECONDS
    ) -> None:
        """Note how the race of ``entry`` ended: what a pass takes; it is not run again before a pause."""
        self._contest = None
        served = _served(entry)
        if served is not None:
            again_at = self._clock() + pause_seconds
            self._raced[entry.name] = _Raced(*_raced_on(served), seconds, again_at)


def _choice(entry: Entry) -> Choice | None:
    """Return the choice of the plan that ``entry`` has now; None: it has none of one engine and shape."""
    result = entry.fitted
    if not isinstance(result, EnginePlanResult) or result.plan.others:
        return None
    return result.plan.choice


def _raced_on(served: _Served) -> tuple[int, str]:
    """Return what a race depends on: the limit of its plans, and what was known of them."""
    profile = served.prepared.profile
    return served.limit_bytes, "" if profile is None else profile.searched_on
