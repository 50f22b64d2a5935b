"""The schedule of one sweep, without IO and without a clock.

Everything that decides what may happen when lives here. Events come in (``completed``), actions go out
(``release``); the engine, the simulator and the tests drive the same object.

A sweep is a row of stages (read, kernel; later read, copy, kernel), each with its operations in order.
The constraints of seed 003, Eq. 3, become two numbers an operation:

- completion constraint (R_i before K_i): operation i of a stage needs the first ``needs[i]``
  operations of the stage before it to be complete;
- target buffer constraint (R_i only into free space): it needs the first ``room[i]`` operations of
  the stage after it to be complete, which have then used up what lay there;
- release constraint (R_i before R_i+1): operations of a stage are released in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass


class ScheduleError(Exception):
    """An event that cannot happen: a completion of something that is not in flight."""


@dataclass(frozen=True)
class Stage:
    """The operations of one stage: operation i has ``needs[i]`` and ``room[i]`` (see above)."""

    name: str
    needs: tuple[int, ...]
    room: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.needs) != len(self.room):
            raise ValueError(f"stage {self.name}: {len(self.needs)} needs, {len(self.room)} rooms")

    def __len__(self) -> int:
        return len(self.needs)


@dataclass(frozen=True)
class Action:
    """Start operation ``index`` of stage ``stage`` (a position in the schedule's stages)."""

    stage: int
    index: int


class Schedule:
    """State of one sweep. ``release`` until it returns nothing, then report a completion, repeat."""

    def __init__(self, stages: Sequence[Stage], in_flight: int | None = None) -> None:
        self.stages = tuple(stages)
        self._limit = in_flight
        self._released = [0] * len(stages)
        self._done: list[set[int]] = [set() for _ in stages]
        self._prefix = [0] * len(stages)
        self._stopped = False

    def release(self) -> list[Action]:
        """Return the operations that may start now, later stages first; they count as started."""
        actions = []
        for stage in reversed(range(len(self.stages))):
            while self._may_release(stage):
                actions.append(Action(stage, self._released[stage]))
                self._released[stage] += 1
        return actions

    def completed(self, stage: int, index: int) -> None:
        """Note that an operation ended; of one stage they may end in any order.

        Raises:
            ScheduleError: the operation is not in flight.
        """
        if not (0 <= index < self._released[stage]) or self._is_done(stage, index):
            raise ScheduleError(f"{self.stages[stage].name} {index} completed but not in flight")
        self._done[stage].add(index)
        while self._prefix[stage] in self._done[stage]:
            self._done[stage].remove(self._prefix[stage])
            self._prefix[stage] += 1

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
        """Every operation is complete."""
        return all(
            prefix == len(stage) for prefix, stage in zip(self._prefix, self.stages, strict=True)
        )

    def _is_done(self, stage: int, index: int) -> bool:
        return index < self._prefix[stage] or index in self._done[stage]

    def _may_release(self, stage: int) -> bool:
        index = self._released[stage]
        if self._stopped or index >= len(self.stages[stage]):
            return False
        if self._limit is not None and self.in_flight >= self._limit:
            return False
        needs, room = self.stages[stage].needs[index], self.stages[stage].room[index]
        fed = stage == 0 or self._prefix[stage - 1] >= needs
        free = stage == len(self.stages) - 1 or self._prefix[stage + 1] >= room
        return fed and free

    def __repr__(self) -> str:
        progress = ", ".join(
            f"{stage.name} {prefix}/{released}/{len(stage)}"
            for stage, prefix, released in zip(
                self.stages, self._prefix, self._released, strict=True
            )
        )
        return f"<Schedule {progress} (done/released/all)>"
