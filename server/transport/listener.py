"""Listening: on an address, a path, or an inherited socket; and the tasks that let clients in."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import MutableMapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from server.transport.intake import stamp_arrivals
from server.transport.proxy_protocol import Announcements
from server.transport.registry import Registry, Visitor

_log = logging.getLogger(__name__)

_Knocking = tuple[socket.socket, Any]

#: Connections that the kernel keeps until they are accepted.
BACKLOG = 512
# The first descriptor of systemd's socket activation.
_FIRST_INHERITED = 3
_BATCH = 64
_RETRY_SECONDS = 0.2
_QUIET_SECONDS = 60.0
# While visitors wait, they are looked at so often: no event says that a connection has fallen silent.
_LOOK_SECONDS = 0.05


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
    # Accepted sockets inherit this, so also bytes that come while a connection waits have a time.
    stamp_arrivals(listener)
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
    if listener.family != socket.AF_UNIX:
        stamp_arrivals(listener)
    listener.setblocking(False)
    return listener


class Create(Protocol):
    """Makes the protocol of a connection: with a place, or to refuse its request."""

    def __call__(self, visitor: Visitor, *, has_place: bool) -> asyncio.BaseProtocol: ...


async def accept(listener: socket.socket, registry: Registry, create: Create) -> None:
    """Accept until cancelled. A connection without a place waits at the door, and is refused after a while.

    When the door is full as well, connections wait in the kernel's queue.
    """
    door = _Door(registry, create)
    opening = asyncio.create_task(door.keep())
    try:
        await _accept(listener, registry, door)
    finally:
        opening.cancel()
        await asyncio.wait({opening})
        await door.shut()


async def _accept(listener: socket.socket, registry: Registry, door: "_Door") -> None:
    loop = asyncio.get_running_loop()
    said_at = -_QUIET_SECONDS
    while True:
        await _knocks(listener)
        try:
            knocking = [listener.accept(), *_others(listener)]
        except (BlockingIOError, ConnectionError):
            continue  # the client left before it was accepted
        except OSError as exc:
            # There is no descriptor or no memory: a silent connection is closed to free one.
            if loop.time() - said_at >= _QUIET_SECONDS:
                said_at = loop.time()
                _log.warning("cannot accept connections: %s", exc.strerror or exc)
            registry.spare(loop.time())
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        for sock, address in knocking:
            door.take(Visitor(registry.peer(_host(address)), sock))


async def _knocks(listener: socket.socket) -> None:
    """Wait until a client connects.

    ``loop.sock_accept`` is not used: a connection that it has accepted when it is cancelled is lost.
    """
    loop = asyncio.get_running_loop()
    knocked = asyncio.Event()
    loop.add_reader(listener, knocked.set)
    try:
        await knocked.wait()
    finally:
        loop.remove_reader(listener)


def _others(listener: socket.socket) -> list[_Knocking]:
    """Accept what else waits: with one a turn, the last would wait for seconds on a busy event loop."""
    accepted: list[_Knocking] = []
    while len(accepted) < _BATCH:
        try:
            accepted.append(listener.accept())
        except OSError:
            break
    return accepted


class _Door:
    """Makes connections of the visitors that ``registry`` lets in or turns away.

    A visitor is a socket that was accepted and has no place yet.
    """

    def __init__(self, registry: Registry, create: Create) -> None:
        self._registry = registry
        self._create = create
        self._loop = asyncio.get_running_loop()
        self._coming: set[asyncio.Task[None]] = set()
        self._announcements = Announcements(registry, self._knock)

    def take(self, visitor: Visitor) -> None:
        """Hand ``visitor`` to the registry, behind a proxy with PROXY headers as that of its client."""
        if visitor.peer.is_proxy and self._registry.limits.announced:
            self._announcements.take(visitor)
        else:
            self._knock(visitor)

    def _knock(self, visitor: Visitor) -> None:
        refused = self._registry.knock(visitor, self._loop.time())
        if refused is not None:
            self._begin(refused, has_place=False)

    async def keep(self) -> None:
        """Let visitors in, again whenever a place may have come free, and regularly while some wait."""
        changed = self._registry.changed
        while True:
            changed.clear()
            try:
                self._open()
            except Exception:  # noqa: BLE001  without this task no newcomer would ever be let in again
                _log.exception("a look at the newcomers failed")
            look_again = _LOOK_SECONDS if self._registry.waiting else None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), look_again)

    def _open(self) -> None:
        """Let in the visitors that have a place by now, and refuse those that have waited too long."""
        now = self._loop.time()
        for visitor in self._registry.let_in(now):
            self._begin(visitor, has_place=True)
        for visitor in self._registry.turn_away(now):
            self._begin(visitor, has_place=False)

    async def shut(self) -> None:
        """Let in the visitors that have a place and refuse the others; return when each is a connection."""
        await self._announcements.end()
        self._open()
        for visitor in self._registry.turn_all_away():
            self._begin(visitor, has_place=False)
        if self._coming:
            await asyncio.wait(self._coming)

    def _begin(self, visitor: Visitor, has_place: bool) -> None:
        task = self._loop.create_task(self._connect(visitor, has_place))
        self._coming.add(task)
        task.add_done_callback(self._coming.discard)

    async def _connect(self, visitor: Visitor, has_place: bool) -> None:
        """Make ``visitor`` a connection. Never cancel it: uvloop would close one that is half made."""
        sock = visitor.sock
        try:
            sock.setblocking(False)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            create = partial(self._create, visitor, has_place=has_place)
            await self._loop.connect_accepted_socket(create, sock)
        except OSError:
            sock.close()  # the client left
            if has_place:
                self._registry.missed(visitor.peer)


def _host(address: Any) -> str:
    """Return the client's host in ``address``; empty for a Unix socket."""
    return str(address[0]) if isinstance(address, tuple) else ""
