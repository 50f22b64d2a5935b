"""When bytes came to a socket, which the kernel notes. What only listens imports no event loop for it."""

import contextlib
import socket
import struct
import time

# SO_TIMESTAMPNS of asm-generic/socket.h: the kernel notes when bytes come.
_TIMESTAMP = 35
_TIMESPEC = struct.Struct("@ll")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)


def stamp_arrivals(sock: socket.socket) -> None:
    """Let the kernel note when bytes come to ``sock`` and to sockets that it accepts.

    Emulators of the system call refuse; then times are not known.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _TIMESTAMP, 1)


def came_at(sock: socket.socket | None) -> float | None:
    """Return when the first byte that waits in ``sock`` came, on time.monotonic's clock.

    None: nothing waits, or the kernel has no time (as of Unix sockets). Bytes that came in parts may have
    been joined; then it is the time of the last part.
    """
    if sock is None:
        return None
    try:
        _, ancillary, _, _ = sock.recvmsg(1, _ANCILLARY_BYTES, socket.MSG_PEEK)
    except OSError:
        return None
    for _, kind, data in ancillary:
        if kind == _TIMESTAMP and len(data) == _TIMESPEC.size:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            age = time.time() - float(seconds) - nanoseconds * 1e-9
            return time.monotonic() - max(float(age), 0.0)
    return None
