"""A Unix socket to listen on: its path is there as long as it listens, for those whom its mode lets in."""

import errno
import os
import socket
import stat
from pathlib import Path

from server.transport.listener import BACKLOG, PortError


class UnixListener(socket.socket):
    """Listens at ``path``, which goes when this is closed."""

    def __init__(self, path: Path, mode: int) -> None:
        """Bind and listen; what is left of a server that was killed makes room.

        Raises:
            PortError: somebody listens there, something else lies there, or it is not allowed.
        """
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM)
        self._path = path
        self._made: tuple[int, int] | None = None
        try:
            _clear(path)
            self.bind(str(path))
            self._made = _identity(path)
            path.chmod(mode)  # before it listens: until then nobody gets in
            self.listen(BACKLOG)
        except OSError as exc:
            self.close()
            raise PortError(f"cannot listen on {path}: {exc.strerror or exc}") from exc
        self.setblocking(False)

    def close(self) -> None:
        """Close; the path stays if it is another server's by now."""
        made, self._made = self._made, None
        if made is not None and _identity(self._path) == made:
            self._path.unlink(missing_ok=True)
        super().close()


def _clear(path: Path) -> None:
    """Remove a socket that nobody listens on.

    Raises:
        OSError: somebody does, or it is something else.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.EEXIST, "there is something that is no socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)  # a server that is too busy to accept is there
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
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
