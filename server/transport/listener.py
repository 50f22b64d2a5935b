"""Listening: a socket, and the task that accepts from it while there are places."""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from server.transport.reads import stamp_arrivals
from server.transport.registry import Registry

_log = logging.getLogger(__name__)

_Knocking = tuple[socket.socket, Any]
_Create = Callable[[socket.socket], asyncio.BaseProtocol]

#: Who may knock before somebody opens.
BACKLOG = 512
_BATCH = 64
_RETRY_SECONDS = 0.2
_QUIET_SECONDS = 60.0


class PortError(Exception):
    """The address cannot be listened on."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on ``host``:``port`` (0: a free one).

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
        raise PortError(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
    listener.setblocking(False)
    return listener


async def accept(listener: socket.socket, registry: Registry, create: _Create) -> None:
    """Accept until cancelled; where there is no place, those who knock wait in the kernel's queue."""
    loop = asyncio.get_running_loop()
    said_at = -_QUIET_SECONDS
    while True:
        try:
            knocking = [await loop.sock_accept(listener), *_others(listener)]
        except ConnectionError:
            continue  # it left before its turn
        except OSError as exc:
            # No descriptor or no memory: somebody silent may give his back.
            if loop.time() - said_at >= _QUIET_SECONDS:
                said_at = loop.time()
                _log.warning("cannot accept connections: %s", exc.strerror or exc)
            registry.drop_silent(loop.time())
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        await _take_in(knocking, registry, create)


def _others(listener: socket.socket) -> list[_Knocking]:
    """Return who else knocks: on a busy event loop a turn for each would keep the last for seconds."""
    found: list[_Knocking] = []
    while len(found) < _BATCH:
        try:
            found.append(listener.accept())
        except OSError:
            break
    return found


async def _take_in(knocking: list[_Knocking], registry: Registry, create: _Create) -> None:
    """Make connections of ``knocking``, each once there is a place; close whose address has enough."""
    loop = asyncio.get_running_loop()
    coming: list[asyncio.Task[None]] = []
    try:
        while knocking:
            sock, address = knocking[0]
            host = _host(address)
            if registry.admits(host, loop.time()):
                await registry.place()
                registry.expect(host)
                coming.append(loop.create_task(_connect(sock, create)))
                coming[-1].add_done_callback(partial(_arrived, registry, host))
            else:
                registry.dropped += 1
                sock.close()
            del knocking[0]
    finally:
        for sock, _ in knocking:
            sock.close()
        await asyncio.gather(*coming)


def _arrived(registry: Registry, host: str, _: "asyncio.Task[None]") -> None:
    registry.arrived(host)


def _host(address: Any) -> str:
    """Return where who knocks comes from; empty: through a Unix socket."""
    return str(address[0]) if isinstance(address, tuple) else ""


async def _connect(sock: socket.socket, create: _Create) -> None:
    """Make ``sock`` a connection, to the end also when this is cancelled.

    uvloop closes one that is half made in silence; whoever counts it would wait for its end for ever.
    """
    loop = asyncio.get_running_loop()
    try:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stamp_arrivals(sock)
    except OSError:
        sock.close()  # the client left
        return
    making = loop.create_task(loop.connect_accepted_socket(partial(create, sock), sock))
    try:
        await asyncio.shield(making)
    except OSError:
        sock.close()  # the client left
    finally:
        await asyncio.wait({making})
