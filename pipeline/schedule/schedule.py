"""The schedule of one sweep, without IO and without a clock.

Everything that decides what may happen when lives here. Events come in (``completed``), actions go out
(``release``); the engine, the simulator and the tests drive the same object.

A sweep is a row of stages (read, copy, kernel), each with its operations in order. Every constraint of
seed 003, Eq. 3, is a number: how many operations of some stage must be complete before this one starts.

- completion constraint (R_i before C_i, C_i before K_i): of the stage before, those that bring its data;
- target buffer constraint (R_i only into free space): of a stage after, those that use up what lies there;
- a sequential or synchronous order (Sections V-A, V-B): of all stages, those that must come first;
- release constraint (R_i before R_i+1): operations of a stage are released in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class ScheduleError(Exception):
    """An event that cannot happen: a completion of something that is not in flight."""


@dataclass(frozen=True)
class Stage:
    """The operations of one stage.

    ``after[i][t]``: operation i starts when at least so many operations of stage t, counted from its
    first, are complete. The last ``ahead`` operations serve the next sweep; this one ends without them.
    """

    name: str
    after: tuple[tuple[int, ...], ...]
    ahead: int = 0

    def __len__(self) -> int:
        return len(self.after)


@dataclass(slots=True)  # frozen ones take four times as long to make, and every operation is one
class Action:
    """Start operation ``index`` of stage ``stage`` (a position in the schedule's stages)."""

    stage: int
    index: int


class Schedule:
    """State of one sweep. ``release`` until it returns nothing, then report a completion, repeat.

    ``carried``: operations of the first stage that the sweep before has released already.
    """

    def __init__(self, stages: Sequence[Stage], carried: int = 0) -> None:
        self.stages = tuple(stages)
        #: Nothing more is released until so many operations of the last stage are complete, or one of
        #: another stage. Who completes those of the last stage may tell of as many at once.
        self.turn = 0
        self._released = [0] * len(stages)
        self._released[0] = carried
        self._done: list[set[int]] = [set() for _ in stages]
        self._prefix = [0] * len(stages)
        self._stopped = False

    def release(self) -> list[Action]:
        """Return the operations that may start now, later stages first; they count as started."""
        actions: list[Action] = []
        if self._stopped:
            return actions
        self.turn = len(self.stages[-1])
        for stage in range(len(self.stages) - 1, -1, -1):
            after = self.stages[stage].after
            index = self._released[stage]
            while index < len(after) and self._may_start(after[index]):
                actions.append(Action(stage, index))
                index += 1
            self._released[stage] = index
            if index < len(after) and after[index][-1] > self._prefix[-1]:
                self.turn = min(self.turn, after[index][-1])
        return actions

    def completed(self, stage: int, index: int) -> None:
        """Note that an operation ended; of one stage they may end in any order.

        Raises:
            ScheduleError: the operation is not in flight.
        """
        if not (0 <= index < self._released[stage]) or self._is_done(stage, index):
            raise ScheduleError(f"{self.stages[stage].name} {index} completed but not in flight")
        done = self._done[stage]
        if index != self._prefix[stage]:
            done.add(index)
            return
        self._prefix[stage] += 1
        while done and self._prefix[stage] in done:
            done.remove(self._prefix[stage])
            self._prefix[stage] += 1

    def completed_up_to(self, stage: int, count: int) -> None:
        """Note that the first ``count`` operations have ended, of a stage where they end in order.

        Raises:
            ScheduleError: some of them are not in flight.
        """
        if not self._prefix[stage] <= count <= self._released[stage] or self._done[stage]:
            raise ScheduleError(
                f"{self.stages[stage].name} up to {count} completed but not in flight"
            )
        self._prefix[stage] = count

    def stop(self) -> None:
        """Release nothing more: the sweep failed or was cancelled and only drains."""
        self._stopped = True

    @property
    def in_flight(self) -> int:
        """Operations released and not complete."""
        return sum(
            released - prefix - len(done)
            for released, prefix, done in zip(self._released, self._prefix, self._done, strict=True)
        )

    @property
    def drained(self) -> bool:
        """Nothing is in flight and nothing more will be released."""
        return self.in_flight == 0 and (self._stopped or self.finished)

    @property
    def finished(self) -> bool:
        """Every operation of this sweep is complete; those for the next one may be in flight."""
        return all(
            prefix >= len(stage) - stage.ahead
            for prefix, stage in zip(self._prefix, self.stages, strict=True)
        )

    def _is_done(self, stage: int, index: int) -> bool:
        return index < self._prefix[stage] or index in self._done[stage]

    def _may_start(self, after: Sequence[int]) -> bool:
        # A loop: any() with a generator takes three times as long, and kernels wait for this.
        for prefix, count in zip(self._prefix, after, strict=True):  # noqa: SIM110
            if prefix < count:
                return False
        return True

    def __repr__(self) -> str:
        progress = ", ".join(
            f"{stage.name} {prefix}/{released}/{len(stage)}"
            for stage, prefix, released in zip(
                self.stages, self._prefix, self._released, strict=True
            )
        )
        return f"<Schedule {progress} (done/released/all)>"


def awaited(stages: Sequence[Stage]) -> frozenset[int]:
    """Return the kernels whose end something waits for: another operation, or whoever asked."""
    last = len(stages) - 1
    counts = {after[last] for stage in stages for after in stage.after} | {len(stages[last])}
    return frozenset(count - 1 for count in counts if count)
