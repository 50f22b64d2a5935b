"""What connections may do, as numbers."""

import resource
from dataclasses import dataclass

from server.transport.proxies import NO_PROXIES, TrustedProxies

#: Bytes that one read takes from a connection: what it can hold before anybody asked for them.
READ_BYTES = 16 << 10
#: Bytes of a body that may lie unread where its request holds memory for them.
AHEAD_BYTES = 64 << 10
#: Bytes that the header of a request may have, its URL included.
HEADER_BYTES = 32 << 10
#: Fields that it may have: each takes twenty times its bytes at worst.
HEADER_FIELDS = 128
#: Bytes of a body that count as progress: fewer are as good as none.
PROGRESS_BYTES = 4096
#: Silence after which a connection gives way to another that finds no place.
GRACE_SECONDS = 1.0
#: Silence after which a newcomer does, if it must: its first request comes with it, or a handshake does.
FRESH_SECONDS = 0.25
#: How long the end of the server waits, between two requests, for one that is on its way.
PARTING_SECONDS = 0.5
#: How long an ended connection is read on, so that the answer is not lost to a reset.
LINGER_SECONDS = 5.0
#: Bytes a second at which the rest of a body may come whose request has had its answer.
LEFT_OVER_PACE = 64 << 10
#: How long a newcomer waits for a place: most that are taken have fallen silent or were used by then.
WAIT_SECONDS = 2.5
#: Connections that have had their last answer and are read on, at a time.
ENDING_CONNECTIONS = 256

# Newcomers that wait at a time: a proxy opens as many connections at once as it has clients.
_MOST_WAITING, _FEWEST_WAITING = 1024, 64
# Descriptors that are not connections: packs, pictures in temporary files, the event loop's own.
_OTHER_FILES = ENDING_CONNECTIONS + 128


@dataclass(frozen=True)
class ConnectionLimits:
    """At most ``total`` connections, ``per_address`` of one client address (None: as many as are free).

    ``waiting``: newcomers that may wait for a place. Those from ``proxies`` count as clients of their own;
    ``announced``: each begins with a PROXY header, and counts as the client's that this names. Times in
    seconds.

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


def allowed_files(wanted_connections: int, ports: int = 1) -> tuple[int, int]:
    """Raise this process's limit on open files as far as needed; return how many connections fit.

    Those that have a place, and those that wait for one. ``ports``: how many there are that take so many
    each. An accept that fails for want of a descriptor would shut everybody out.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = ports * wanted_connections + _MOST_WAITING + _OTHER_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    free = soft - _OTHER_FILES
    total = max(1, min(wanted_connections, (free - _FEWEST_WAITING) // ports))
    return total, min(_MOST_WAITING, max(_FEWEST_WAITING, free - ports * total))
