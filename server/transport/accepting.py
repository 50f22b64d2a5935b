"""The tasks that let clients in: they accept, and visitors wait at the door until they have a place."""

import asyncio
import contextlib
import logging
import socket
from functools import partial
from typing import Any, Protocol

from server.errors import system_hint
from server.transport.http1 import HEAD_END
from server.transport.limits import HEADER_BYTES
from server.transport.proxy_protocol import Announcements
from server.transport.registry import Registry, Visitor

_log = logging.getLogger(__name__)

_Knocking = tuple[socket.socket, Any]

_BATCH = 64
_RETRY_SECONDS = 0.2
_QUIET_SECONDS = 60.0
# While visitors wait, they are looked at so often: no event says that a connection has fallen silent.
_LOOK_SECONDS = 0.05
# All visitors are looked at in one buffer, as large as a head may be.
_PEEKED = bytearray(HEADER_BYTES)
# A record of TLS begins with its type, its version and the length of what follows.
_HANDSHAKE, _RECORD_BYTES = 22, 5


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
                words = f"{exc.strerror or exc}{system_hint(exc)}"
                _log.warning("cannot accept connections: %s", words)
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

    A visitor is a socket that was accepted and has no place yet. What it has sent is checked and not
    read: a complete head goes before a partial one.
    """

    def __init__(self, registry: Registry, create: Create) -> None:
        self._registry = registry
        self._create = create
        self._loop = asyncio.get_running_loop()
        self._coming: set[asyncio.Task[None]] = set()
        self._unchecked: list[Visitor] = []
        self._checked_at = float("-inf")
        self._announcements = Announcements(registry, self._knock)

    def take(self, visitor: Visitor) -> None:
        """Hand ``visitor`` to the registry, behind a proxy with PROXY headers as that of its client."""
        if visitor.peer.is_proxy and self._registry.limits.announced:
            self._announcements.take(visitor)
        else:
            self._knock(visitor)

    def _knock(self, visitor: Visitor) -> None:
        self._unchecked.append(visitor)
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
            # Not wait_for, which forgets that it was cancelled where a place comes free in the same moment.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(look_again):
                    await changed.wait()

    def _open(self) -> None:
        """Let in the visitors that have a place by now, and refuse those that have waited too long."""
        now = self._loop.time()
        self._check(now)
        for visitor in self._registry.let_in(now):
            self._begin(visitor, has_place=True)
        for visitor in self._registry.turn_away(now):
            self._begin(visitor, has_place=False)

    def _check(self, now: float) -> None:
        """Report to the registry which connections have sent a request: the new ones, regularly all."""
        waiting, self._unchecked = self._unchecked, []
        if now - self._checked_at >= _LOOK_SECONDS:
            self._checked_at, waiting = now, list(self._registry.door)
        for pending in waiting:
            if not self._registry.is_ready(pending):
                self._registry.report(pending, _has_request(pending.sock), now)

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


def _has_request(sock: socket.socket) -> bool:
    """Return whether the head of a request has come, or the first message of TLS; nothing is read."""
    try:
        count = sock.recv_into(_PEEKED, 0, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:  # nothing has come, or the client left
        return False
    if _PEEKED[0] == _HANDSHAKE and count >= _RECORD_BYTES:
        return count >= _RECORD_BYTES + int.from_bytes(_PEEKED[3:_RECORD_BYTES])
    return count == len(_PEEKED) or HEAD_END in _PEEKED[:count].lstrip(HEAD_END)


def _host(address: Any) -> str:
    """Return the client's host in ``address``; empty for a Unix socket."""
    return str(address[0]) if isinstance(address, tuple) else ""
