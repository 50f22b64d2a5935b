"""The limits of connections."""

import resource
from dataclasses import dataclass

from server.transport.proxies import NO_PROXIES, TrustedProxies

#: Bytes that one read takes from a connection, and so the most that it holds before a handler wants them.
READ_BYTES = 16 << 10
#: Bytes of a body that may lie unread where its request holds memory for them.
AHEAD_BYTES = 64 << 10
#: Bytes that the header of a request may have, its URL included.
HEADER_BYTES = 32 << 10
#: Fields that a header may have: at worst each takes twenty times its bytes.
HEADER_FIELDS = 128
#: Bytes of a body that count as progress: fewer are as good as none.
PROGRESS_BYTES = 4096
#: Silence after which a connection gives way to another that finds no place.
GRACE_SECONDS = 1.0
#: The same for a new connection, if no other can: its first request or handshake mostly comes at once.
FRESH_SECONDS = 0.25
#: How long the end of the server waits, between two requests, for one that is on its way.
PARTING_SECONDS = 0.5
#: How long an ended connection is read on, so that the answer is not lost to a reset.
LINGER_SECONDS = 5.0
#: Bytes a second at which the rest of a body must come after its request has had its answer.
LEFT_OVER_PACE = 64 << 10
#: How long a newcomer waits for a place: by then most other connections were used or have fallen silent.
WAIT_SECONDS = 2.5
#: Connections that have had their last answer and are read on, at a time.
ENDING_CONNECTIONS = 256

# Newcomers that wait at a time: a proxy opens as many connections at once as it has clients.
_MOST_WAITING, _FEWEST_WAITING = 1024, 64
# With fewer descriptors libraries end the process, or the event loop does not begin.
_MIN_FILES = 32
# Descriptors for other things than connections: packs, temporary files, the event loop.
_OTHER_FILES = ENDING_CONNECTIONS + 128


@dataclass(frozen=True)
class ConnectionLimits:
    """At most ``total`` connections, ``per_address`` of one client address (None: as many as are free).

    ``waiting``: newcomers that may wait for a place. Each connection of ``proxies`` counts as a client of
    its own; ``announced``: each begins with a PROXY header, and counts as that of the client in the header.
    Times in seconds.

    ``header_seconds``: from the first byte of a header to its last, and before the first byte of all.
    ``idle_seconds``: between two requests. ``stall_seconds``: without progress of an answer.
    """

    total: int
    per_address: int | None
    header_seconds: float
    idle_seconds: float
    stall_seconds: float
    waiting: int = _MOST_WAITING
    proxies: TrustedProxies = NO_PROXIES
    announced: bool = False


def missing_files() -> str:
    """Return why this process cannot serve with the files that it may have open; "": it can."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _MIN_FILES:
        return ""
    return f"this process may have {hard} files open (LimitNOFILE in a unit, ulimit -n), too few to serve"


def allowed_files(wanted_connections: int, ports: int = 1) -> tuple[int, int]:
    """Raise this process's limit on open files as far as needed; return how many connections fit.

    The first number is of places on each of ``ports``, the second of newcomers that wait. Without a free
    descriptor no connection could be accepted at all.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = ports * wanted_connections + _MOST_WAITING + _OTHER_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    free = soft - _OTHER_FILES
    total = max(1, min(wanted_connections, (free - _FEWEST_WAITING) // ports))
    return total, min(_MOST_WAITING, max(_FEWEST_WAITING, free - ports * total))
