"""Infer requests before they begin: by when they have to be answered, and what is refused unread."""

import math
import re
import time

import orjson

from server.context import Context
from server.errors import BusyError, NotFoundError, NotServingError
from server.operation.logs import identity
from server.protocol.errors import outcome_of, retry_after, status_of
from server.protocol.infer import infer
from server.protocol.routing import Table
from server.repository.entry import Entry
from server.requests.exchange import FREE_BYTES
from server.transport.http1 import Head
from server.transport.intake import Arrived, Refused

# Only where there is not time enough for all does it matter whose parameter this is.
_TIMEOUT = re.compile(rb'"timeout"\s*:\s*(\d{1,15})')
_MICROSECONDS = 1_000_000


class InferReception:
    """Tells by when infer requests have to be answered, and refuses them, without parsing their bodies."""

    def __init__(self, context: Context, table: Table) -> None:
        self._context = context
        self._table = table

    def deadline(self, request: Arrived, is_free: bool) -> float | None:
        """Return by when an infer request has to be answered, as far as is known; None for all others.

        Raises:
            BusyError: its model's line would refuse it.
        """
        entry = self._asked(request.head)
        worker = None if entry is None else entry.worker
        if entry is None or worker is None:
            return None
        if is_free and worker.idle:
            return math.inf  # nothing keeps it waiting
        limit = self._context.settings.request_timeout
        seconds = _named(request) or entry.timeout_seconds
        deadline = request.at + min(seconds or limit, limit)
        try:
            if request.is_whole and not worker.idle:
                worker.check_room(deadline - time.monotonic())
        except NotServingError:
            return None  # whoever reads it says so
        return deadline

    def refusal(self, request: Arrived, why: BusyError) -> Refused:
        """Return the answer to ``request``, which is refused, and count it."""
        entry = self._asked(request.head)
        if entry is not None and entry.version is not None:
            outcome, seconds = outcome_of(why), time.monotonic() - request.at
            self._context.metrics.end(entry.model, entry.version, outcome, seconds)
        body = orjson.dumps({"error": str(why)})
        headers = [
            (b"retry-after", b"%d" % retry_after(why.retry_seconds)),  # first, as handlers say it
            (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/json"),
            (b"x-request-id", identity(request.head.headers).encode()),
        ]
        return Refused(status_of(why), headers, body)

    def _asked(self, head: Head) -> Entry | None:
        """Return the entry of the model that an infer request asks; None: it is none, or none answers."""
        found = self._table.find(head.path)
        route = found and found.routes.get(head.method)
        if found is None or route is None or route.answer is not infer:
            return None
        try:
            return self._context.repository.models.find(**found.parts)
        except NotFoundError:
            return None  # whoever reads it says why


def _named(request: Arrived) -> float | None:
    """Return the seconds that ``request`` has by its own parameters, where its body is short and here."""
    if not request.is_whole or len(request.body) > FREE_BYTES:
        return None
    found = _TIMEOUT.search(request.body)
    return None if found is None else int(found[1]) / _MICROSECONDS or None
