"""The schedule of one sweep, without IO and without a clock.

All decisions of what may happen when are made here. Events come in (``completed``), actions go out
(``release``); the engine, traces of predicted sweeps and the tests drive the same object.

A sweep is a row of stages (read, copy, kernel), each with its operations in order. Every constraint of
seed 003, Eq. 3, is a number: how many operations of some stage must be complete before this one starts.

- completion constraint (R_i before C_i, C_i before K_i): of the stage before, those that bring its data;
- target buffer constraint (R_i only into free space): of a stage after, those that use up what lies there;
- a sequential or synchronous order (Sections V-A, V-B): of all stages, those that must come first;
- release constraint (R_i before R_i+1): operations of a stage are released in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loader.ring import RingPlace
from pipeline.schedule.architectures import Architecture


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
        #: another stage. Those of the last stage may be reported so many at once.
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
    """Return the kernels whose end something waits for: another operation, or the caller."""
    last = len(stages) - 1
    counts = {after[last] for stage in stages for after in stage.after} | {len(stages[last])}
    return frozenset(count - 1 for count in counts if count)


# The constraints of seed 003, Eq. 3, as numbers: what must be complete before an operation starts.
#
# Invariant: every constraint points backwards in the order "operations of step g before those of step g +
# 1", so there is always an operation that may run (no deadlock).


@dataclass(frozen=True)
class Steps:
    """What the constraints depend on: G reads of one sweep, each with its kernels, and P kernels.

    ``users[g]``: the kernels [start, stop) that use what read g brings. ``read_places`` and
    ``copy_places``: where in a ring read and copy g write. ``copy_places`` is empty where kernels use what
    the disk wrote. Places beyond the G-th belong to reads for the next sweep; ``idle``: they wait for all
    kernels of this one. A read without a place in the ring waits for all kernels before its users: it
    writes where activations lay.
    """

    users: Sequence[range]
    kernels: int
    read_places: Sequence[RingPlace | None]
    copy_places: Sequence[RingPlace | None] = ()
    idle: bool = False

    def blocks(self) -> list[int]:
        """Return b with kernels [b[g], b[g + 1]) in cycle g: users of g and what follows them."""
        starts = [users.start for users in self.users]
        return [0, *starts[1:], self.kernels] if starts else [0, self.kernels]

    def free_after(self, read: int) -> int:
        """Return how many kernels must be complete before ``read`` may write to its place."""
        slot = self.read_places[read]
        return self.users[read].start if slot is None else self.used_up(slot.after)

    def used_up(self, groups: int) -> int:
        """Return how many kernels use what the first ``groups`` reads bring."""
        return self.users[groups - 1].stop if groups else 0


def stages(architecture: Architecture, steps: Steps) -> tuple[Stage, ...]:
    """Return the stages of one sweep."""
    make = _three_stages if architecture.copies else _two_stages
    usual = make(steps)
    if architecture.order == "sequential":
        return _sequential(usual, steps)
    return _lockstep(usual, steps) if architecture.order == "lockstep" else usual


def _two_stages(steps: Steps) -> tuple[Stage, ...]:
    """R_i ~> ring(s_i), R_i |-> K_i."""
    count = len(steps.users)
    room = [(0, steps.free_after(read)) for read in range(len(steps.read_places))]
    head = [(0, steps.kernels) for _ in room[count:]] if steps.idle else room[count:]
    kernels = tuple((needed, 0) for needed in _needs(steps))
    return (
        Stage("read", (*room[:count], *head), ahead=len(head)),
        Stage("kernel", kernels),
    )


def _three_stages(steps: Steps) -> tuple[Stage, ...]:
    """R_i ~> CPU(s_i), R_i |-> C_i, C_i ~> GPU(s_i), C_i |-> K_i."""
    count = len(steps.users)
    room = [(0, slot.after if slot else 0, 0) for slot in steps.read_places]
    head = [(0, 0, steps.kernels) for _ in room[count:]] if steps.idle else room[count:]
    copies = tuple(
        (index + 1, 0, steps.used_up(slot.after if slot else 0))
        for index, slot in enumerate(steps.copy_places)
    )
    kernels = tuple((0, needed, 0) for needed in _needs(steps))
    return (
        Stage("read", (*room[:count], *head), ahead=len(head)),
        Stage("copy", copies),
        Stage("kernel", kernels),
    )


def _needs(steps: Steps) -> list[int]:
    """Return for each kernel how many reads (or copies) must be complete; 0 without weights."""
    needs = [0] * steps.kernels
    for index, users in enumerate(steps.users):
        for kernel in users:
            needs[kernel] = index + 1
    return needs


def _sequential(made: tuple[Stage, ...], steps: Steps) -> tuple[Stage, ...]:
    """Section V-A: R_i when all kernels before those of step i are complete."""
    last = len(made) - 1
    starts = [users.start for users in steps.users]
    reads = tuple(_with(after, last, starts[i]) for i, after in enumerate(made[0].after))
    return (Stage("read", reads), *made[1:])


def _lockstep(made: tuple[Stage, ...], steps: Steps) -> tuple[Stage, ...]:
    """Section V-B, Eq. 7: in cycle t run R_t, C_t-1 and the kernels of t-2; all wait for cycle t-1."""
    count, blocks = len(steps.users), steps.blocks()

    def cycle(number: int) -> tuple[int, int, int]:
        """Return what the cycles before ``number`` complete."""
        bounded = [min(max(number - lag, 0), count) for lag in range(3)]
        return bounded[0], bounded[1], blocks[bounded[2]]

    order = [
        kernel for block in range(count) for kernel in [block] * (blocks[block + 1] - blocks[block])
    ]
    reads = tuple(_most(after, cycle(i)) for i, after in enumerate(made[0].after))
    copies = tuple(_most(after, cycle(i + 1)) for i, after in enumerate(made[1].after))
    kernels = (
        tuple(
            _most(after, cycle(block + 2))
            for block, after in zip(order, made[2].after, strict=True)
        )
        if count
        else made[2].after
    )
    return (Stage("read", reads), Stage("copy", copies), Stage("kernel", kernels))


def _with(after: tuple[int, ...], stage: int, count: int) -> tuple[int, ...]:
    return (*after[:stage], max(after[stage], count), *after[stage + 1 :])


def _most(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(max, one, other))
