"""All requests in flight: each has its exchange, and those that stall are ended here."""

from typing import Literal

from server.errors import BusyError, StalledError
from server.memory.request_memory import Lease, RequestMemory
from server.requests.exchange import BodyLimit, Client, Exchange

#: Silence after which a request gives way to others that wait for what it holds.
GRACE_SECONDS = 0.5
# So late may a photograph be whose memory others want.
_LATE_SECONDS = 1.0

#: What a body is: of a request, or a model, which has a limit of its own.
Kind = Literal["body", "upload"]


class Exchanges:
    """All exchanges that run; ends those that stall.

    ``max_body``: of a request in bytes; ``max_upload``: of one that sends a model; None: the same.
    """

    def __init__(
        self,
        memory: RequestMemory,
        max_body: int,
        stall_seconds: float,
        max_upload: int | None = None,
    ) -> None:
        self.memory = memory
        body = BodyLimit(max_body)
        upload = body if max_upload is None else BodyLimit(max_upload, "max_upload")
        self._limits: dict[Kind, BodyLimit] = {"body": body, "upload": upload}
        self._stall_seconds = stall_seconds
        self._open: set[Exchange] = set()
        self._short_since: float | None = None
        #: Ended for want of progress.
        self.stalled = 0

    def __len__(self) -> int:
        return len(self._open)

    def exchange(self, client: Client, kind: Kind = "body") -> Exchange:
        """Return the exchange of one request, a context manager: at its end all that is held is free."""
        lease = Lease(self.memory, client.owner)
        exchange = Exchange(client, lease, self._limits[kind], self._open.discard)
        self._open.add(exchange)
        return exchange

    def sweep(self, now: float, hurry: bool) -> None:
        """End who has stalled too long; in a ``hurry``, or where memory is short, after half a second."""
        hurry = hurry or self.memory.waiting > 0
        limit = GRACE_SECONDS if hurry else self._stall_seconds
        for exchange in self._open:
            if exchange.patience.stalled_seconds(now) >= limit:
                self.stalled += 1
                exchange.patience.end(StalledError(f"the client made no progress for {limit:g} s"))
        self._hasten(now)

    def _hasten(self, now: float) -> None:
        """End bodies that come a second late where others have waited for memory for a while.

        The latest go first, until nothing is missing.
        """
        if not self.memory.waiting:
            self._short_since = None
            return
        since = self._short_since = now if self._short_since is None else self._short_since
        if now - since < GRACE_SECONDS:
            return
        missing = self.memory.missing_bytes
        for exchange in sorted(self._open, key=lambda each: each.late_seconds(now), reverse=True):
            held = exchange.lease.held_bytes
            if missing > 0 and held > 0 and exchange.late_seconds(now) >= _LATE_SECONDS:
                missing -= held
                exchange.patience.end(
                    BusyError(
                        "the photograph comes slowly, and there is no memory for others meanwhile"
                    )
                )
