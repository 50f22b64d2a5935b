"""A pass over weights in one thread, in every order in which its reads can end.

What other threads do, they do while the thread that runs the pass does not have the lock. So where it is
about to take the lock, waits, asks whether it is cancelled or runs a kernel, reads in flight may end. Which
of them do is a choice, and so is which of them fail; a test makes all choices, run by run.
"""

import queue
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from loader.errors import ReadError
from pipeline.devices.base import Done
from pipeline.execution import deadlines
from pipeline.execution.errors import CancelledError, DeadlineError
from pipeline.execution.sweep import Sweeper
from pipeline.planning.plan import Plan
from pipeline.schedule.trace import TraceEvent
from tests.pipeline.schedule.judge import violations
from tests.pipeline.synthetic import PAGE
from tests.pipeline.writes import read_buffers, writes

#: What a pass may end with, beside an answer.
_FAULTS = (ReadError, CancelledError, DeadlineError)


class Choices:
    """Answers for ``run``s, so that each sequence of answers is given once.

    Where a run comes to a state that another one was in, it takes the first answer from there on: what
    follows was tried.
    """

    def __init__(self) -> None:
        #: Of each question so far: the answer, and how many there are.
        self._path: list[tuple[int, int]] = []
        self._depth = 0
        self._visited: set[object] = set()
        self._is_visited = False

    def runs(self) -> Iterator[None]:
        """Yield once for each sequence of answers."""
        while True:
            self._depth, self._is_visited = 0, False
            yield
            while self._path and self._path[-1][0] + 1 == self._path[-1][1]:
                self._path.pop()
            if not self._path:
                return
            answer, count = self._path.pop()
            self._path.append((answer + 1, count))

    def choose(self, count: int, state: Callable[[], object]) -> int:
        """Return one of ``count`` answers; ``state`` is all that what follows depends on."""
        if count == 1 or self._is_visited:
            return 0
        if self._depth == len(self._path):
            now = state()
            if now in self._visited:
                self._is_visited = True
                return 0
            self._visited.add(now)
            self._path.append((0, count))
        self._depth += 1
        return self._path[self._depth - 1][0]


class _Lock:
    """The lock of a pass, as one thread sees it: before it is taken, reads end."""

    def __init__(self, passes: "Stepped") -> None:
        self._passes = passes
        self.depth = 0

    def __enter__(self) -> None:
        if not self.depth:
            self._passes.others()
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


class _Landed:
    """The condition of that lock: a wait ends when it is notified, and no time passes."""

    def __init__(self, passes: "Stepped", lock: _Lock) -> None:
        self._passes = passes
        self._lock = lock
        self._is_notified = False

    def __enter__(self) -> None:
        self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

    def notify_all(self) -> None:
        self._is_notified = True

    def wait_for(self, predicate: Callable[[], bool], timeout: float) -> bool:
        assert predicate() or self._passes.is_over(), "no deadline ends this wait"
        depth, self._lock.depth = self._lock.depth, 0
        self._passes.is_draining = True
        while not predicate():
            self._is_notified = False
            while not self._is_notified:
                assert self._passes.in_flight, "it waits for what has ended"
                self._passes.end_one()
        self._passes.is_draining = False
        self._lock.depth = depth
        return True


class _Ready:
    """The queue of kernels that may run: what is put there comes from other threads."""

    passes: "Stepped"

    def __init__(self) -> None:
        self.items: deque[int | None] = deque()

    def put(self, item: int | None) -> None:
        self.items.append(item)

    def get_nowait(self) -> int | None:
        self.passes.others()
        if not self.items:
            raise queue.Empty
        return self.items.popleft()

    def get(self, timeout: float) -> int | None:
        while not self.items:
            assert self.passes.in_flight, "it waits for a read that has ended"
            if not self.passes.end_one(may_be_late=True):
                raise queue.Empty
        self.passes.others()
        return self.items.popleft()


class Stepped:
    """Passes of ``plan`` with up to so many ``faults``: reads and copies that fail or do not start, and
    passes that are cancelled or late.

    Checked are: what the disk writes and kernels read (``_Bytes``); that no read is started which is in
    flight or done for its pass, and nothing while a pass waits for the last to end; that what is waited for
    comes; and that a pass that is not over waits only where its deadline ends the wait. Traces of
    ``recorded`` passes are checked, too.
    """

    def __init__(
        self,
        plan: Plan,
        choices: Choices,
        faults: int,
        patch: pytest.MonkeyPatch,
        recorded: bool = False,
    ) -> None:
        #: Stage, index, the pass that started it, and what is called when it ends.
        self.in_flight: list[tuple[int, int, int, Done]] = []
        self.ran: list[int] = []
        self._plan = plan
        self._choices = choices
        self.faults = faults
        self._recorded = recorded
        self._now = 0.0
        self._pass = -1
        self._is_other = False
        self._memory = _Bytes(plan, self._expect)
        #: Messages: an error may be one that a pass does not raise.
        self._violations: list[str] = []
        #: Reads in flight or done, numbered across passes.
        self._present: set[int] = set()
        self._is_idle = True
        self.is_draining = False
        patch.setattr("pipeline.execution.computing.queue.SimpleQueue", _Ready)
        patch.setattr(_Ready, "passes", self, raising=False)
        patch.setattr(deadlines, "time", self)
        patch.setattr("pipeline.execution.deadlines.DRAIN_SECONDS", 60.0)
        starts = [self._starting(stage) for stage in range(len(plan.stages) - 1)]
        kernels = [self._kernel(index) for index in range(len(plan.steps))]
        self._runner = Sweeper(plan.stages, starts, kernels)
        lock = _Lock(self)
        self._runner._lock = lock  # type: ignore[assignment]
        self._runner._landed = _Landed(self, lock)  # type: ignore[assignment]

    def monotonic(self) -> float:
        return self._now

    def run(self) -> str:
        """Run one pass; return how it ended."""
        trace: list[TraceEvent] = []
        self.ran.clear()
        self._pass += 1
        first = self._read(self._pass, 0)
        self._present = {read for read in self._present if read >= first}
        self._is_idle = False
        try:
            record = trace.append if self._recorded else None
            self._runner.run(self._now + 1.0, self._cancelled, record)
        except _FAULTS as exc:
            assert not self.in_flight
            assert not self._violations, self._violations
            return f"{type(exc).__name__}: {exc}"
        finally:
            self._is_idle = True
        assert not self._violations, self._violations
        assert self.ran == list(range(len(self._plan.steps)))
        if self._recorded:
            assert violations(trace, writes(self._plan), len(self.ran)) == []
        return "ok"

    def drain(self) -> None:
        self._runner.drain()
        assert not self.in_flight
        assert not self._violations, self._violations

    def _expect(self, holds: bool, message: str) -> None:
        if not holds:
            self._violations.append(message)

    def is_over(self) -> bool:
        """Return whether no pass runs but one that has failed."""
        return self._is_idle or sys.exception() is not None

    def others(self) -> None:
        """Let reads end."""
        if self._is_other:
            return
        while answer := self._choose(1 + len(self._ends())):
            self._end(*self._ends()[answer - 1])

    def end_one(self, may_be_late: bool = False) -> bool:
        """Let one read end; return False where the deadline passed instead."""
        ends = self._ends()
        late = may_be_late and self.faults > 0
        answer = self._choose(len(ends) + late)
        if answer == len(ends):
            self.faults -= 1
            self._now += 1.0
            return False
        self._end(*ends[answer])
        return True

    def _choose(self, count: int) -> int:
        return self._choices.choose(count, self._state)

    def _ends(self) -> list[tuple[int, bool]]:
        """Return which operations may end, and whether each fails."""
        ends = [(position, False) for position in range(len(self.in_flight))]
        return ends + [(position, True) for position, _ in ends] if self.faults else ends

    def _end(self, position: int, fails: bool) -> None:
        stage, index, started, done = self.in_flight.pop(position)
        self.faults -= fails
        if fails and not stage:
            self._present.remove(self._read(started, index))
        self._memory.end(stage, index, fails)
        self._is_other = True
        try:
            done(ReadError(f"read {index}: EIO") if fails else None, 0.0)
        finally:
            self._is_other = False

    def _starting(self, stage: int) -> Callable[[int, Done], None]:
        def start(index: int, done: Done) -> None:
            self._expect(not self.is_draining, "it starts while a pass waits for the last to end")
            if self.faults and self._choose(2):
                self.faults -= 1
                raise ReadError(f"read {index}: refused")
            if not stage:
                read = self._read(self._pass, index)
                self._expect(read not in self._present, f"read {index} is in flight or done")
                self._present.add(read)
            self._memory.start(stage, index)
            self.in_flight.append((stage, index, self._pass, done))

        return start

    def _read(self, started: int, index: int) -> int:
        """Return the number, across passes, of a read that pass ``started`` has started."""
        return started * len(self._plan.reads) + index

    def _kernel(self, index: int) -> Callable[[], None]:
        def kernel() -> None:
            self.others()
            self._memory.use(index)
            self.ran.append(index)

        return kernel

    def _cancelled(self) -> bool:
        self.others()
        if self.faults and self._choose(2):
            self.faults -= 1
            return True
        return False

    def _state(self) -> object:
        """Return all that decides what can happen from here on."""
        flying = tuple(item[:3] for item in self.in_flight)
        memory = frozenset(self._present), self._memory.state()
        mine = flying, self.faults, self._is_other, tuple(self.ran), memory
        return mine, _frozen(self._runner), tuple(_locations(sys._getframe(1)))


class _Bytes:
    """What lies in the buffers: of each page, which read brought it; None: the disk may write there."""

    def __init__(self, plan: Plan, expect: Callable[[bool, str], None]) -> None:
        self._plan = plan
        self._expect = expect
        copies = plan.architecture.copies
        read = read_buffers(plan)
        self._slots = (read, plan.weights) if copies else (read,)
        self._users = plan.users
        self._pages: list[dict[int, int | None]] = [{} for _ in self._slots]
        self._writing: list[set[int]] = [set() for _ in self._slots]

    def start(self, stage: int, index: int) -> None:
        pages = self._of(stage, index)
        self._expect(not self._writing[stage] & pages, "two write to the same bytes")
        self._writing[stage] |= pages
        self._pages[stage].update(dict.fromkeys(pages))
        if stage:
            self._check(stage - 1, index)

    def end(self, stage: int, index: int, failed: bool) -> None:
        pages = self._of(stage, index)
        self._writing[stage] -= pages
        if not failed:
            self._pages[stage].update(dict.fromkeys(pages, index % len(self._plan.reads)))
        if stage and not failed:
            self._check(stage - 1, index)

    def use(self, kernel: int) -> None:
        """Check what ``kernel`` reads."""
        for read, users in enumerate(self._users):
            if kernel in users:
                self._check(len(self._slots) - 1, read)

    def state(self) -> object:
        return tuple(tuple(sorted(pages.items())) for pages in self._pages), self._writing_now()

    def _writing_now(self) -> object:
        return tuple(tuple(sorted(pages)) for pages in self._writing)

    def _check(self, stage: int, read: int) -> None:
        there = {self._pages[stage].get(page) for page in self._of(stage, read)}
        self._expect(there == {read}, f"it uses what reads {there} wrote, and not {read}")

    def _of(self, stage: int, index: int) -> set[int]:
        slot = self._slots[stage][index]
        return set(range(slot.offset, slot.end, PAGE))


def _locations(frame: FrameType | None) -> Iterator[object]:
    """Yield where in the product this thread is, and what it has counted there."""
    while frame is not None:
        if "/pipeline/execution/" in frame.f_code.co_filename:
            counts = [item for item in frame.f_locals.items() if isinstance(item[1], int)]
            yield frame.f_code.co_name, frame.f_lineno, tuple(counts)
        frame = frame.f_back


def _frozen(value: Any) -> object:
    """Return ``value`` as one that can be compared; of an object of the product, what its fields are."""
    if isinstance(value, list | tuple | deque):
        return tuple(map(_frozen, value))
    if isinstance(value, dict):
        return tuple((key, _frozen(item)) for key, item in value.items())
    if isinstance(value, _Ready):
        return tuple(value.items)
    if type(value).__module__.startswith("pipeline.") and not isinstance(value, Exception):
        names = getattr(value, "__slots__", None) or vars(value)
        return tuple(
            (name, _frozen(getattr(value, name))) for name in names if "stages" not in name
        )
    is_plain = isinstance(value, int | str | set | Exception | None)
    return repr(value) if is_plain else type(value).__name__
