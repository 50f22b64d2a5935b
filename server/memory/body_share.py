"""What bodies hold that wait for their photograph's turn: a part of the memory of requests.

Who has the turn takes what its pixels need beside its body, and waits for that where it is not free. Sweeps
and answers give back what they hold; bodies in line would not, before they have had the turn themselves. So
together they hold a part at most, and the one that has the turn always finds the rest. A body that is
larger than the part waits alone.

Invariant: who waits for the turn, or has it, has a part of the share, as large as its body or all of it.
"""

from server.memory.request_memory import RequestMemory

_SHARE = 8


def room_beside_bodies(n_bytes: int) -> int:
    """Return what requests must have room for so that one has ``n_bytes`` beside bodies in line."""
    return -(-n_bytes * _SHARE // (_SHARE - 1))


class BodyShare:
    """The share of ``memory``, for which as many may wait as for that."""

    def __init__(self, memory: RequestMemory) -> None:
        self._memory = memory
        self._pool = RequestMemory(0, memory.limit, keeps_some=False)

    @property
    def pool(self) -> RequestMemory:
        """It, as large as it is now."""
        self._pool.capacity_bytes = self._memory.room_bytes // _SHARE
        return self._pool


class BodyPart:
    """What one body of ``client`` holds of ``share``, until it is closed."""

    def __init__(self, share: BodyShare, client: str) -> None:
        self._share = share
        self._client = client
        self._held_bytes = 0

    @property
    def others_bytes(self) -> int:
        """The most that other bodies in line hold of the memory of requests while this one has its part."""
        return max(self._share.pool.capacity_bytes - self._held_bytes, 0)

    async def hold(self, n_bytes: int | None) -> None:
        """Hold a part for a body of ``n_bytes``; None: nobody knows how long it is. Once is enough.

        Raises:
            BusyError: too many wait.
        """
        if self._held_bytes:
            return
        pool = self._share.pool
        wanted = pool.capacity_bytes if n_bytes is None else min(n_bytes, pool.capacity_bytes)
        await pool.take(wanted, self._client)
        self._held_bytes = wanted

    def close(self) -> None:
        """Give the part back."""
        if self._held_bytes:
            self._share.pool.give(self._held_bytes, self._client)
            self._held_bytes = 0
