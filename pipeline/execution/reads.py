"""The reads of a plan, numbered across passes: each waits, is in flight, is done, or has failed.

Read ``index`` of pass p has the number p x count + index. The last reads that a pass starts are ahead: they
have an index of ``count`` or more, and so the numbers of the first reads of the next pass. A number is for
one pass, whichever pass starts the read, and whenever it ends.

Invariant: a read is in flight at most once, and is not read again once it is done. One that failed before
its pass waits again when that starts; one that fails later fails its pass. Pure: callers hold one lock.
"""

from typing import Literal

from pipeline.schedule.schedule import ScheduleError

#: Of one read; that of reads of passes that are over is forgotten.
ReadState = Literal["waiting", "in flight", "done", "failed"]


class Reads:
    """The reads of one pass after the other, each of ``count`` reads and so many ``ahead`` for the next."""

    def __init__(self, count: int, ahead: int) -> None:
        self._count = count
        #: The number of the first read of the pass that runs; before the first pass there is none.
        self._first = -count
        self._states: list[ReadState] = ["waiting"] * (count + ahead)

    def begin(self) -> list[ReadState]:
        """Start the next pass; return the states of its first reads, those that were started ahead.

        Those that have failed wait again.

        Raises:
            ScheduleError: a read of the pass before is in flight.
        """
        if "in flight" in self._states[: self._count]:
            raise ScheduleError("a pass starts while reads of the one before are in flight")
        ahead = self._states[self._count :]
        new: list[ReadState] = ["waiting"] * self._count
        self._states = ahead + new
        self._first += self._count
        for index, state in enumerate(ahead):
            if state == "failed":
                self._states[index] = "waiting"
        return [state for state in ahead if state != "waiting"]

    def start(self, index: int) -> int:
        """Note that read ``index`` of the pass that runs is started; those ahead are started in order.

        Returns:
            its number.

        Raises:
            ScheduleError: it was started before.
        """
        read = self._first + index
        if self._states[index] != "waiting":
            raise ScheduleError(f"read {read} started but {self._states[index]}")
        self._states[index] = "in flight"
        return read

    def end(self, read: int, *, failed: bool) -> int:
        """Note that the read with that number has ended; return its index in the pass that runs.

        Raises:
            ScheduleError: it is not in flight.
        """
        index = read - self._first
        if not 0 <= index < len(self._states) or self._states[index] != "in flight":
            raise ScheduleError(f"read {read} ended but not in flight")
        self._states[index] = "failed" if failed else "done"
        return index

    def is_ahead(self, index: int) -> bool:
        """Return whether read ``index`` is for the next pass."""
        return index >= self._count
