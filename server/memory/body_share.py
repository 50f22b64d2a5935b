"""What bodies hold that wait for their photograph's turn: a part of the memory of requests.

Who has the turn takes what its pixels need beside its body, and waits for that where it is not free. Sweeps
and answers give back what they hold; bodies in line would not, before they have had the turn themselves. So
together they hold a part at most, and the one that has the turn always finds the rest. A body that is
larger than the part waits alone.

A body that comes slowly would keep others out of the line as long as it comes. It lies aside, in what
neither those in line nor a usual photograph need. Where there is no room, it can be ended
(server/requests/exchanges.py).

Invariant: bodies that hold memory have parts of the line and of what is aside, together as large as they
are, or all of both.
"""

from server.errors import BusyError
from server.memory.request_memory import Lease, RequestMemory
from server.memory.request_room import BODIES_SHARE


class BodyShare:
    """The share of ``memory``, for which as many may wait as for that."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self.line = RequestMemory(0, memory.limit, keeps_some=False)
        self.aside = RequestMemory(0, memory.limit, keeps_some=False)
        self.divide()

    def divide(self, photograph_bytes: int = 0) -> None:
        """Divide the memory as large as it is now; ``photograph_bytes`` are left for a usual photograph."""
        room = self._memory.room_bytes
        self.line.capacity_bytes = room // BODIES_SHARE
        self.aside.capacity_bytes = max(room - room // BODIES_SHARE - photograph_bytes, 0)

    @property
    def waiting(self) -> int:
        """Bodies that wait for a part."""
        return self.line.waiting + self.aside.waiting


class BodyPart:
    """What one body of ``client`` holds of ``share``, until it is closed."""

    def __init__(self, share: BodyShare, client: str) -> None:
        self.line = Lease(share.line, client)
        self.aside = Lease(share.aside, client)
        self._n_bytes = 0

    @property
    def others_bytes(self) -> int:
        """The most that others in line hold of the memory of requests while this one has its part."""
        return max(self.line.room_bytes - self.line.held_bytes, 0)

    async def hold(self, n_bytes: int, *, is_all: bool = True, is_slow: bool = False) -> None:
        """Hold a part for a body of ``n_bytes``, or of which as many have come where not ``is_all``.

        ``is_slow``: it comes slowly.

        Raises:
            BusyError: too many wait, or a slow one has no room to grow.
        """
        self._n_bytes = n_bytes
        if not self.line.held_bytes:
            lies_aside = self.aside.held_bytes > 0
            if (is_slow or lies_aside) and self.aside.hold_at_once(n_bytes):
                return
            if lies_aside:  # it would wait with memory in its hands
                raise slow_error()
            most = self.line.room_bytes
            await self.line.hold(min(n_bytes, most) if is_all else most)
        await self.aside.hold(min(max(n_bytes - self.line.held_bytes, 0), self.aside.room_bytes))

    def step_aside(self) -> None:
        """Leave the line to others, if there is room aside."""
        if self.line.held_bytes and self.aside.hold_at_once(self._n_bytes):
            self.line.close()

    def close(self) -> None:
        """Give the part back."""
        self.line.close()
        self.aside.close()


def slow_error() -> BusyError:
    """Return why a photograph that comes slowly is ended."""
    return BusyError("the photograph comes slowly, and there is no memory for others meanwhile")
