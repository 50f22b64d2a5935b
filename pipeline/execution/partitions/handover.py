"""Which frame is where in a pipeline of partitions: which may begin, what it writes and what it reads.

No IO, no clock, no threads. Between partition p and p + 1 lies edge p with two buffers. A frame owns a
buffer of an edge from when partition p begins until p + 1 has ended: it is written, full, then read.

Invariants: a partition runs one frame at a time; a buffer belongs to one frame at a time; frames pass every
partition in the order in which they entered; a frame that leaves, wherever it is, frees what it owned and
changes nothing for the others.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipeline.execution.deadlines import check_deadline
from pipeline.execution.errors import CancelledError
from pipeline.execution.given import Take, Tensors
from pipeline.execution.statistics import SweepStatistics
from pipeline.planning.plan import BUFFERS
from pipeline.schedule.trace import Recorder

# One request on its way through partitions.


class Frame:
    """One request on its way; ``took`` and ``waited`` say what its partitions took, and its waits for them.

    Changed under the pipeline's lock, but for what the worker that runs it writes.
    """

    def __init__(
        self,
        given: Tensors,
        take: Take[Any],
        deadline: float | None,
        cancelled: Callable[[], bool],
        record: Recorder | None,
    ) -> None:
        self.given = given
        self.take = take
        self.deadline = deadline
        self.abandoned = False
        self._cancelled = cancelled
        self.record = record
        self.took: list[SweepStatistics] = []
        self.waited = 0.0
        self.answer: Any = None
        self.error: BaseException | None = None
        self.over = False
        self._since: float | None = time.perf_counter()

    def cancelled(self) -> bool:
        """Whether its answer is not needed any longer."""
        return self.abandoned or self._cancelled()

    @property
    def runs(self) -> bool:
        """Whether a partition runs it."""
        return not self.over and self._since is None

    def begins(self) -> None:
        """A partition runs it from now on."""
        assert self._since is not None
        self.waited += time.perf_counter() - self._since
        self._since = None

    def waits(self) -> None:
        """It waits for the next partition."""
        self._since = time.perf_counter()

    def ends(self) -> None:
        """It is through, or goes no further."""
        self.over, self.given = True, {}

    def left(self) -> float | None:
        """Return how long its caller may wait on; None: until something changes.

        Raises:
            CancelledError, DeadlineError: it waits for a partition, and is not to do so any longer.
        """
        if self._since is None:
            return None  # what runs it asks itself
        if self.cancelled():
            raise CancelledError("cancelled while another frame was running")
        return check_deadline(self.deadline, "while another frame was running")


# Turns of partitions.


@dataclass(frozen=True)
class Turn:
    """A frame at a partition: the buffer that it reads of the edge before, and writes of the edge behind.

    None: there is no such edge.
    """

    partition: int
    reads: int | None
    writes: int | None


class Handover:
    """Frames in a pipeline of ``partitions``."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._entered = 0
        #: The partition where each frame is, or waits to begin; oldest first.
        self._at: dict[int, int] = {}
        self._running: list[int | None] = [None] * partitions
        self._owners: list[list[int | None]] = [[None] * BUFFERS for _ in range(partitions - 1)]

    @property
    def frames(self) -> tuple[int, ...]:
        """Those that have entered and are neither through nor gone, oldest first."""
        return tuple(self._at)

    def enter(self) -> int:
        """Return a new frame, which waits for the first partition."""
        self._entered += 1
        self._at[self._entered] = 0
        return self._entered

    def begin(self, frame: int) -> Turn | None:
        """Let ``frame`` begin where it waits; None: not yet."""
        partition = self._at[frame]
        if self._running[partition] is not None or self._next(partition) != frame:
            return None
        writes = None
        if partition < self._partitions - 1:
            owners = self._owners[partition]
            if None not in owners:
                return None
            writes = owners.index(None)
            owners[writes] = frame
        self._running[partition] = frame
        return Turn(partition, self._read_by(frame, partition), writes)

    def begin_at(self, partition: int) -> tuple[int, Turn] | None:
        """Let the oldest frame begin that waits for ``partition``; None: there is none, or not yet."""
        oldest = next((frame for frame, at in self._at.items() if at == partition), None)
        turn = None if oldest is None else self.begin(oldest)
        return None if oldest is None or turn is None else (oldest, turn)

    def end(self, frame: int) -> None:
        """The partition that ``frame`` runs in has ended: what it wrote is full, what it read is free."""
        partition = self._at[frame]
        self._running[partition] = None
        if partition:
            self._free(partition - 1, frame)
        if partition == self._partitions - 1:
            del self._at[frame]
        else:
            self._at[frame] = partition + 1

    def leave(self, frame: int) -> None:
        """``frame`` goes no further, wherever it is; nothing if it is through."""
        partition = self._at.pop(frame, None)
        if partition is None:
            return
        if self._running[partition] == frame:
            self._running[partition] = None
        for edge in range(len(self._owners)):
            self._free(edge, frame)

    def _next(self, partition: int) -> int:
        """Return the oldest frame at ``partition``."""
        return next(frame for frame, at in self._at.items() if at == partition)

    def _read_by(self, frame: int, partition: int) -> int | None:
        return self._owners[partition - 1].index(frame) if partition else None

    def _free(self, edge: int, frame: int) -> None:
        owners = self._owners[edge]
        owners[:] = [None if owner == frame else owner for owner in owners]
