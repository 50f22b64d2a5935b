"""Listening: on an address, a path, or an inherited socket."""

import errno
import os
import socket
import stat
from collections.abc import MutableMapping
from pathlib import Path

#: Connections that the kernel keeps until they are accepted.
BACKLOG = 512
# The first descriptor of systemd's socket activation.
_FIRST_INHERITED = 3


class PortError(Exception):
    """The address cannot be listened on."""


def listen(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Return a socket that listens on ``host``:``port`` (0: a free one), which ``flag`` says.

    Raises:
        PortError: it is in use, not allowed, or no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, event loops know TCP and send small answers at once (TCP_NODELAY).
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        reason = exc.strerror or exc
        in_use = exc.errno == errno.EADDRINUSE
        hint = f" (another port: {flag} NUMBER)" if in_use else ""
        raise PortError(f"cannot listen on {host}:{port}: {reason}{hint}") from exc
    listener.setblocking(False)
    return listener


class UnixListener(socket.socket):
    """Listens at ``path``, which is removed when this is closed."""

    def __init__(self, path: Path, mode: int) -> None:
        """Bind and listen; remove the socket of a server that was killed.

        Raises:
            PortError: a process listens there, the path is no socket, or it is not allowed.
        """
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = path
        self._bound: tuple[int, int] | None = None
        try:
            _clear(path)
            self.bind(str(path))
            self._bound = _identity(path)
            path.chmod(mode)  # before it listens: no client can connect earlier
            self.listen(BACKLOG)
        except OSError as exc:
            self.close()
            raise PortError(f"cannot listen on {path}: {exc.strerror or exc}") from exc
        self.setblocking(False)

    def close(self) -> None:
        """Close; the path stays if it is another server's by now."""
        bound, self._bound = self._bound, None
        if bound is not None and _identity(self._path) == bound:
            self._path.unlink(missing_ok=True)
        super().close()


def _clear(path: Path) -> None:
    """Remove a socket on which no process listens.

    Raises:
        OSError: a process listens on it, or the path is no socket.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EEXIST, "there is something that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)  # not to wait for a server that is too busy to accept
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def inherited(
    environ: MutableMapping[str, str] = os.environ, first: int = _FIRST_INHERITED
) -> socket.socket | None:
    """Return the one socket that the service manager listens on already; None: there is none.

    The variables for it are taken out of ``environ``, since they are not for child processes.

    Raises:
        PortError: there are several sockets, or it does not listen.
    """
    count, owner = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    environ.pop("LISTEN_FDNAMES", None)
    if not count or owner != str(os.getpid()):
        return None
    if count != "1":
        raise PortError(f"{count[:20]!r} sockets from the service manager: one is served")
    try:
        os.set_inheritable(first, False)
        listener = socket.socket(fileno=first)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as exc:
        raise PortError(f"the service manager's socket: {exc.strerror or exc}") from exc
    if not listens or listener.type != socket.SOCK_STREAM:
        listener.close()
        raise PortError("the service manager's socket is no stream that listens")
    listener.setblocking(False)
    return listener
