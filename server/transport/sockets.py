"""What is known of a connection and its socket apart from the bytes that were read."""

import asyncio
import contextlib
import fcntl
import socket
import termios
from dataclasses import dataclass

from server.transport.giving_way import Peer
from server.transport.http1 import HEAD_END
from server.transport.limits import HEADER_BYTES

#: Host and port, or the path of a Unix socket; None: it is not known any more.
Address = tuple[str, int | None] | None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A client that has a place by now, or finds none.

    ``client``: its address; behind a PROXY header that which this names, empty where it names none.
    ``noticed_at``: when its request was noticed before it was read; 0: it was not.
    """

    peer: Peer
    client: Address = None
    has_place: bool = True
    noticed_at: float = 0.0


# All sockets are looked at in one buffer, as large as a head may be.
_PEEKED = bytearray(HEADER_BYTES)
# A record of TLS begins with its type, its version and the length of what follows.
_HANDSHAKE, _RECORD_BYTES = 22, 5


def has_request(sock: socket.socket, early: bytes = b"") -> bool:
    """Return whether the head of a request has come, or the first message of TLS; nothing is read.

    ``early``: the bytes that were read of it, fewer than a head may have.
    """
    count = len(early)
    _PEEKED[:count] = early
    try:
        rest = memoryview(_PEEKED)[count:]
        count += sock.recv_into(rest, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:  # no more has come, or the client left
        pass
    if not count:
        return False
    if _PEEKED[0] == _HANDSHAKE and count >= _RECORD_BYTES:
        return count >= _RECORD_BYTES + int.from_bytes(_PEEKED[3:_RECORD_BYTES])
    return count == len(_PEEKED) or HEAD_END in _PEEKED[:count].lstrip(HEAD_END)


def has_unread(transport: asyncio.Transport) -> bool:
    """Return whether bytes have come that were not read yet: closing now would reset a request."""
    sock = transport.get_extra_info("socket")
    try:
        count = fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(4))
    except (AttributeError, OSError):
        return False
    return any(count)


def address(transport: asyncio.Transport, end: str) -> Address:
    """Return the address of an ``end`` of a connection, "peername" or "sockname"."""
    with contextlib.suppress(OSError):
        match transport.get_extra_info(end):
            case (host, port, *_):
                return str(host), int(port)
            case str(path) if end == "sockname":
                return path, None
    return None
