"""How many calls each address may have at a time; gRPC counts connections, but not whose they are."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from server.errors import BusyError
from server.transport.registry import owner


class Shares:
    """At most ``total`` calls, ``per_address`` of one address (None: as many as are free)."""

    def __init__(self, total: int, per_address: int | None) -> None:
        self._total = total
        self._per_address = per_address
        self._owners: Counter[str] = Counter()

    @contextmanager
    def call(self, address: str) -> Iterator[None]:
        """Count one call from ``address`` while this is open.

        Alone an address may have half of all calls, the next one half of what is left: there is a place for
        who has none.

        Raises:
            BusyError: it has as many as it may.
        """
        name = owner(address)
        share = self._per_address or max(1, self._total - self._owners.total())
        if self._owners[name] >= share:
            raise BusyError(f"this address has {share} calls in flight, as many as it may")
        self._owners[name] += 1
        try:
            yield
        finally:
            self._owners[name] -= 1
            if not self._owners[name]:
                del self._owners[name]
