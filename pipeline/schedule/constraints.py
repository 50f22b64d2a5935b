"""The constraints of seed 003, Eq. 3, as numbers: what must be complete before an operation starts.

Invariant: every constraint points backwards in the order "operations of step g before those of step
g + 1", so there is always an operation that may run (no deadlock).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from loader.ring import RingPlace
from pipeline.schedule.architectures import Architecture
from pipeline.schedule.schedule import Stage


@dataclass(frozen=True)
class Steps:
    """What the constraints depend on: G reads of one sweep, each with its kernels, and P kernels.

    ``users[g]``: the kernels [start, stop) that use what read g brings. ``read_places`` and
    ``copy_places``: where read and copy g write. ``copy_places`` is empty where kernels use what the
    disk wrote. Places beyond the G-th belong to reads for the next sweep; ``idle``: they wait for all
    kernels of this one. ``in_arena``: reads that wait for all kernels before their users, since they write
    where activations lay.
    """

    users: Sequence[range]
    kernels: int
    read_places: Sequence[RingPlace]
    copy_places: Sequence[RingPlace] = ()
    idle: bool = False
    in_arena: Collection[int] = ()

    def blocks(self) -> list[int]:
        """Return b with kernels [b[g], b[g + 1]) in cycle g: users of g and what follows them."""
        starts = [users.start for users in self.users]
        return [0, *starts[1:], self.kernels] if starts else [0, self.kernels]

    def free_after(self, read: int) -> int:
        """Return how many kernels must be complete before ``read`` may write to its place."""
        if read in self.in_arena:
            return self.users[read].start
        return self.used_up(self.read_places[read].after)

    def used_up(self, groups: int) -> int:
        """Return how many kernels use what the first ``groups`` reads bring."""
        return self.users[groups - 1].stop if groups else 0


def stages(architecture: Architecture, steps: Steps) -> tuple[Stage, ...]:
    """Return the stages of one sweep."""
    make = _three_stages if architecture.copies else _two_stages
    made = make(steps)
    if architecture.order == "sequential":
        return _sequential(made, steps)
    return _lockstep(made, steps) if architecture.order == "lockstep" else made


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
    room = [(0, place.after, 0) for place in steps.read_places]
    head = [(0, 0, steps.kernels) for _ in room[count:]] if steps.idle else room[count:]
    copies = tuple(
        (index + 1, 0, steps.used_up(place.after)) for index, place in enumerate(steps.copy_places)
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
