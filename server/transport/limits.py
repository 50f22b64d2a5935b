"""What connections may do, as numbers."""

import resource
from dataclasses import dataclass

#: Bytes that one read takes from a connection: what it can hold before anybody asked for them.
READ_BYTES = 16 << 10
#: Bytes that the header of a request may have, its URL included.
HEADER_BYTES = 32 << 10
#: Fields that it may have: each takes twenty times its bytes at worst. Those behind a body count, too.
HEADER_FIELDS = 128
#: Requests of a connection that may wait for the one that runs.
PIPELINED_REQUESTS = 16
#: Bytes of a body that count as progress: fewer are as good as none.
PROGRESS_BYTES = 4096
#: Silence after which a connection gives way to another that finds no place.
GRACE_SECONDS = 1.0
#: How long an ended connection is read on, so that the answer is not lost to a reset.
LINGER_SECONDS = 5.0

# Descriptors that are not connections: packs, pictures in temporary files, the event loop's own.
_OTHER_FILES = 128


@dataclass(frozen=True)
class ConnectionLimits:
    """At most ``total`` connections, ``per_address`` of one client address (None: as many as are free).

    Times in seconds.

    ``header_seconds``: from the first byte of a header to its last, and before the first byte of all.
    ``idle_seconds``: between two requests. ``stall_seconds``: without progress of an answer.
    """

    total: int
    per_address: int | None
    header_seconds: float
    idle_seconds: float
    stall_seconds: float


def allowed_files(wanted_connections: int, ports: int = 1) -> int:
    """Raise this process's limit on open files as far as needed; return how many connections fit.

    ``ports``: how many there are that take so many each. An accept that fails for want of a descriptor
    would shut everybody out.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = ports * wanted_connections + _OTHER_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted_connections, (soft - _OTHER_FILES) // ports))
