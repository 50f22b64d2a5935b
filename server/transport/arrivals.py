"""When bytes came to a socket, as the kernel noted it, on a clock that is never set.

The kernel's stamps are of the clock of the day, which may be set at any moment: by NTP on a machine without
a battery, by an operator, after a suspend. So the two clocks are compared regularly. A stamp counts only if
the day's clock was surely not set between the stamp and now.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterable

#: SO_TIMESTAMPNS of asm-generic/socket.h: the kernel notes when bytes come.
TIMESTAMP = 35

_TIMESPEC = struct.Struct("@ll")
#: Bytes of the ancillary data that has a stamp.
ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)

# NTP slews both clocks alike, so a larger difference than before means that one was set. Smaller ones are
# of no account, and are those of reading one after the other.
_STEP_SECONDS = 0.001
# A comparison during which the processor was taken away says nothing.
_COMPARE_SECONDS = 0.0002
_ATTEMPTS = 3
# Longer than bytes wait in a socket of a server that works.
_LONGEST_WAIT_SECONDS = 60.0


def stamp_arrivals(sock: socket.socket) -> None:
    """Let the kernel note when bytes come to ``sock`` and to sockets that it accepts.

    Emulators of the system call refuse; then times are not known.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, TIMESTAMP, 1)


class ArrivalTimes:
    """Turns stamps into times of ``clock``; ``day``: the clock of the stamps."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        day: Callable[[], float] = time.time,  # noqa: TID251  the clock of the stamps
    ) -> None:
        self._clock, self._day = clock, day
        # What the day's clock was ahead of the other one when they were last compared.
        self._ahead = day() - clock()
        # When it was last seen to have been set, and the latest time that it had shown before.
        self._set_at, self._day_before = clock(), 0.0

    def compare(self) -> float | None:
        """Compare the clocks; return the time, or None if they cannot be compared now.

        Called every quarter second, so that also a clock that is set and set back is noticed.
        """
        for _ in range(_ATTEMPTS):
            before = self._clock()
            ahead = self._day() - before
            now = self._clock()
            if now - before <= _COMPARE_SECONDS:
                break
        else:
            return None
        if abs(ahead - self._ahead) > _STEP_SECONDS:
            if now - self._set_at > _LONGEST_WAIT_SECONDS:
                self._day_before = 0.0
            self._day_before = max(self._day_before, now + self._ahead)
            self._set_at = now
        self._ahead = ahead
        return now

    def came_at(self, sock: socket.socket | None) -> float | None:
        """Return when the first byte that waits in ``sock`` came.

        None: nothing waits, or it is not known (as of Unix sockets). Bytes that came in parts may have been
        joined; then it is the time of the last part.
        """
        if sock is None:
            return None
        try:
            _, ancillary, _, _ = sock.recvmsg(1, ANCILLARY_BYTES, socket.MSG_PEEK)
        except OSError:
            return None
        return self.stamped_at(ancillary)

    def stamped_at(self, ancillary: Iterable[tuple[int, int, bytes]]) -> float | None:
        """Return the time of the stamp in ``ancillary`` data; None: there is none that can be trusted."""
        for _, kind, data in ancillary:
            if kind == TIMESTAMP and len(data) == _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack(data)
                return self._time_of(float(seconds) + nanoseconds * 1e-9)
        return None

    def _time_of(self, stamp: float) -> float | None:
        now = self.compare()
        if now is None:
            return None
        arrived_at = stamp - self._ahead
        # After it was set back it shows the same times again, so a stamp may be from before.
        is_twice = stamp <= self._day_before and now - self._set_at <= _LONGEST_WAIT_SECONDS
        if is_twice or not self._set_at <= arrived_at <= now + _STEP_SECONDS:
            return None
        return min(arrived_at, now)
