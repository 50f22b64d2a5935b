"""Which of the sweeps that run at once computes: the foremost one that has weights.

Kernels use all cores, so two at once each take twice as long. Here the foremost sweep computes, and another
one does while that waits for weights; its reads go on all the time. Foremost is the sweep that waits for
weights most: while it computes, its ring empties and the disk works; the others have weights all the time.
Of equals it is the one that began first. The sweep that has the baton may launch kernels, and hands it on
between two.

Invariant: at most ``places`` sweeps hold the baton; none waits for a sweep that reads.
"""

import math
import threading
import time
from collections.abc import Callable

from pipeline.execution.errors import CancelledError, DeadlineError

#: Lower ones go first.
Rank = tuple[float, int]
_NOBODY: Rank = (math.inf, 0)


class Baton:
    """As many as ``places`` compute at a time. Thread-safe.

    ``clock``: of deadlines, by which the waits of ``condition`` end.
    """

    def __init__(
        self,
        places: int = 1,
        clock: Callable[[], float] = time.monotonic,
        condition: Callable[[threading.RLock], threading.Condition] = threading.Condition,
    ) -> None:
        self._places = places
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = condition(self._lock)
        self._began = 0
        self._held: set[ComputeClaim] = set()
        self._waiting: list[ComputeClaim] = []
        #: The rank of the foremost that waits, for sweeps that hold it: read without the lock.
        self.foremost = _NOBODY

    def claim(self, stalls: float = 0.0) -> "ComputeClaim":
        """Return the claim of a sweep that begins now.

        ``stalls``: the part of its time in which sweeps of this model wait for weights, from 0 to 1.
        """
        with self._lock:
            self._began += 1
            return ComputeClaim(self, (-round(stalls, 1), self._began))

    def wake(self) -> None:
        """Have the waiting sweeps look whether they are cancelled."""
        with self._lock:
            self._changed.notify_all()

    def take(
        self, claim: "ComputeClaim", deadline: float | None, cancelled: Callable[[], bool]
    ) -> None:
        """Hand the baton on, if ``claim`` has it, and wait until it is its again. Raises as Claim.hold."""
        with self._lock:
            began: float | None = None
            self._held.discard(claim)
            self._waiting.append(claim)
            try:
                if not self._is_next(claim):
                    self._look()  # once: those that wait would go on to wake each other
                    began = time.perf_counter()
                while not self._is_next(claim):
                    self._wait(claim, deadline, cancelled)
                self._held.add(claim)
            finally:
                if began is not None:
                    claim.waited_seconds += time.perf_counter() - began
                self._waiting.remove(claim)
                self._look()

    def give(self, claim: "ComputeClaim") -> None:
        """Let another one have it."""
        with self._lock:
            self._held.discard(claim)
            self._look()

    def has(self, claim: "ComputeClaim") -> bool:
        """Return whether ``claim`` holds it."""
        return claim in self._held

    def _is_next(self, claim: "ComputeClaim") -> bool:
        if claim.over or len(self._held) >= self._places:
            return False
        return claim is min(self._waiting, key=lambda each: each.rank)

    def _wait(
        self, claim: "ComputeClaim", deadline: float | None, cancelled: Callable[[], bool]
    ) -> None:
        """Wait for a change, until ``deadline``. Raises as Claim.hold."""
        if claim.over or cancelled():
            raise CancelledError("cancelled while another model was computing")
        left = None if deadline is None else deadline - self._clock()
        if left is not None and left <= 0:
            raise DeadlineError("the deadline passed while another model was computing")
        self._changed.wait(left)

    def _look(self) -> None:
        """Note the foremost of those that wait, and have all of them look whether they are next."""
        self.foremost = min([claim.rank for claim in self._waiting], default=_NOBODY)
        if self._waiting:
            self._changed.notify_all()


class ComputeClaim:
    """Of one sweep; lower ranks go first. ``waited_seconds``: while it had weights and others computed."""

    def __init__(self, baton: Baton | None, rank: Rank) -> None:
        self._baton = baton
        self.rank = rank
        self.waited_seconds = 0.0
        #: No sweep may compute with it any more.
        self.over = False

    def hold(self, deadline: float | None, cancelled: Callable[[], bool]) -> None:
        """Return when the next kernel may be launched.

        Raises:
            CancelledError, DeadlineError: as asked, while waiting; CancelledError where it is over.
        """
        baton = self._baton
        if baton is None or (baton.foremost > self.rank and baton.has(self)):
            return
        baton.take(self, deadline, cancelled)

    def give(self) -> None:
        """Let others compute: there are no weights, or nothing is left to do."""
        if self._baton is not None:
            self._baton.give(self)

    def end(self) -> None:
        """Give it back for ever: the sweep that computes does not come back."""
        self.over = True
        self.give()


#: For a sweep that has the machine to itself.
FREE = ComputeClaim(None, (0.0, 0))
