"""A socket that the service manager listens on already (systemd's socket activation)."""

import os
import socket
from collections.abc import MutableMapping

from server.transport.listener import PortError

_FIRST = 3


def inherited(
    environ: MutableMapping[str, str] = os.environ, first: int = _FIRST
) -> socket.socket | None:
    """Return the one socket that came with this process, None: there is none.

    What says so is taken out of ``environ``: it is not for children.

    Raises:
        PortError: there are several, or it is none that listens.
    """
    count, owner = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    environ.pop("LISTEN_FDNAMES", None)
    if not count or owner != str(os.getpid()):
        return None
    if count != "1":
        raise PortError(f"{count[:20]!r} sockets from the service manager: one is served")
    try:
        os.set_inheritable(first, False)
        found = socket.socket(fileno=first)
        listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as exc:
        raise PortError(f"the service manager's socket: {exc.strerror or exc}") from exc
    if not listens or found.type != socket.SOCK_STREAM:
        found.close()
        raise PortError("the service manager's socket is no stream that listens")
    found.setblocking(False)
    return found
