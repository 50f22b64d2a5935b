"""The PROXY protocol, versions 1 and 2: the header with which a proxy names the client of a connection.

A proxy that only copies bytes cannot add a header field. It sends this header before the client's first
byte, also before TLS. A trusted proxy must always send it: if it could be left out, a client could send its
own. It is read before the connection waits for a place, so that it counts there among those of its client.
"""

import asyncio
import contextlib
import logging
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from server.faults import Code
from server.transport.http1 import refused
from server.transport.limits import GRACE_SECONDS, PARTING_SECONDS, READ_BYTES
from server.transport.registry import Registry, Visitor

_log = logging.getLogger(__name__)

#: Bytes that a header of version 2 may have: two addresses take 52, the rest is for other information.
HEADER_BYTES = 4096

_SIGNATURE_1: Final = b"PROXY "
_LINE_BYTES = 107
_LINE = re.compile(
    rb"PROXY (?:UNKNOWN(?: [^\r\n]*)?|TCP([46]) (\S+) (\S+) (\d{1,5}) (\d{1,5}))\r\n"
)

_SIGNATURE_2: Final = b"\r\n\r\n\0\r\nQUIT\n"
_BEGINNING_BYTES = len(_SIGNATURE_2) + 4  # version and command, family, length
_LOCAL, _PROXY = 0x20, 0x21
# By family and transport: bytes of an address, and of the addresses and ports of both ends.
_UNSPECIFIED, _TCP4, _TCP6, _UNIX = 0x00, 0x11, 0x21, 0x31
_FAMILIES = {_UNSPECIFIED: (0, 0), _TCP4: (4, 12), _TCP6: (16, 36), _UNIX: (0, 216)}

_QUIET_SECONDS = 60.0
# The address of a client that its proxy does not name: one that is never taken for this machine's.
_UNKNOWN = ("", 0)
_LATE = "the PROXY header did not come in time (setting proxy_protocol)"
_WANTED = "a PROXY header is wanted here first (setting proxy_protocol)"


class ProxyHeaderError(ValueError):
    """The bytes are no PROXY header; the message says what is wrong with them."""


@dataclass(frozen=True)
class ProxyHeader:
    """The first ``size`` bytes of a connection, and the ``client`` that they name, with its port.

    None: they name no client, as for the proxy's own health checks.
    """

    size: int
    client: tuple[str, int] | None


def read_header(data: bytes) -> ProxyHeader | None:
    """Return the header with which ``data`` begins; None: it has not come to its end.

    Raises:
        ProxyHeaderError: the bytes are no header, or a wrong one.
    """
    if data[: len(_SIGNATURE_2)] == _SIGNATURE_2[: len(data)]:
        return _read_2(data)
    if data[: len(_SIGNATURE_1)] == _SIGNATURE_1[: len(data)]:
        return _read_1(data)
    raise ProxyHeaderError(_WANTED)


def _read_1(data: bytes) -> ProxyHeader | None:
    line, end, _ = data[:_LINE_BYTES].partition(b"\n")
    if not end:
        if len(data) >= _LINE_BYTES:
            raise ProxyHeaderError(f"the PROXY header has no end within {_LINE_BYTES} bytes")
        return None
    match = _LINE.fullmatch(line + end)
    if match is None:
        raise ProxyHeaderError("the PROXY header is not PROXY TCP4 or TCP6, addresses, ports")
    if match[1] is None:
        return ProxyHeader(len(match[0]), None)
    source, _ = (_address(text, int(match[1])) for text in (match[2], match[3]))
    port, _ = (_port(text) for text in (match[4], match[5]))
    return ProxyHeader(len(match[0]), (source, port))


def _address(text: bytes, version: int) -> str:
    try:
        ip = ip_address(text.decode("ascii"))
    except ValueError:
        ip = None
    if ip is None or ip.version != version or b"%" in text:
        raise ProxyHeaderError("the PROXY header has something else where an address should be")
    return _written(ip)


def _written(address: IPv4Address | IPv6Address) -> str:
    return str(getattr(address, "ipv4_mapped", None) or address)


def _port(text: bytes) -> int:
    port = int(text)
    if port > 0xFFFF or b"%d" % port != text:
        raise ProxyHeaderError("the PROXY header has something else where a port should be")
    return port


def _read_2(data: bytes) -> ProxyHeader | None:
    if len(data) < _BEGINNING_BYTES:
        return None
    command, family = data[len(_SIGNATURE_2)], data[len(_SIGNATURE_2) + 1]
    length = int.from_bytes(data[_BEGINNING_BYTES - 2 : _BEGINNING_BYTES], "big")
    size = _BEGINNING_BYTES + length
    if command not in {_LOCAL, _PROXY}:
        raise ProxyHeaderError(
            "the PROXY header is of another version than 1 and 2, or no PROXY or LOCAL"
        )
    if size > HEADER_BYTES:
        raise ProxyHeaderError(f"the PROXY header is over the limit of {HEADER_BYTES} bytes")
    if command == _PROXY and family not in _FAMILIES:
        raise ProxyHeaderError("the PROXY header is of no TCP connection")
    n_address, n_ends = _FAMILIES[family] if command == _PROXY else (0, 0)
    if length < n_ends:
        raise ProxyHeaderError("the PROXY header is too short for its addresses")
    if len(data) < size:
        return None
    if not n_address:
        return ProxyHeader(size, None)
    ends = data[_BEGINNING_BYTES : _BEGINNING_BYTES + n_ends]
    port = int.from_bytes(ends[2 * n_address : 2 * n_address + 2], "big")
    return ProxyHeader(size, (_written(ip_address(ends[:n_address])), port))


class Announcements:
    """Connections of proxies whose PROXY header is still to come; then they are handed to ``knock``.

    They hold no place. As many may wait so as for a place; beyond that the first of them is refused.
    """

    def __init__(self, registry: Registry, knock: Callable[[Visitor], None]) -> None:
        self._registry, self._knock = registry, knock
        self._loop = asyncio.get_running_loop()
        self._begun: dict[Visitor, bytes] = {}  # the bytes of each header that have come
        self._due: dict[Visitor, asyncio.TimerHandle] = {}
        self._ending: dict[socket.socket, asyncio.TimerHandle] = {}
        self._all_said = asyncio.Event()
        self._said_at = float("-inf")

    def take(self, visitor: Visitor) -> None:
        """Read the header of ``visitor``, within the time limit of a request's header."""
        visitor.sock.setblocking(False)
        self._begun[visitor] = b""
        self._all_said.clear()
        self._loop.add_reader(visitor.sock, self._hear, visitor)
        limits = self._registry.limits
        self._due[visitor] = self._loop.call_later(limits.header_seconds, self._expire, visitor)
        if len(self._begun) > limits.waiting:
            self._expire(next(iter(self._begun)))

    async def end(self) -> None:
        """Wait as long for headers on their way as for requests when the server ends, then close all."""
        if self._begun:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_said.wait(), PARTING_SECONDS)
        for visitor in list(self._begun):
            self._forget(visitor)
            visitor.sock.close()
        for sock in list(self._ending):
            self._close(sock)

    def _hear(self, visitor: Visitor) -> None:
        """Read the bytes of the header that have come, and none of those behind it."""
        sock, begun = visitor.sock, self._begun[visitor]
        try:
            data = sock.recv(HEADER_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._forget(visitor)
            sock.close()
            return
        try:
            header = read_header(begun + data)
        except ProxyHeaderError as exc:
            self._refuse(visitor, Code.INVALID_REQUEST, str(exc))
            return
        sock.recv(len(data) if header is None else header.size - len(begun))
        if header is None:
            self._begun[visitor] = begun + data
            return
        self._forget(visitor)
        self._knock(self._named(visitor, header.client))

    def _named(self, visitor: Visitor, client: tuple[str, int] | None) -> Visitor:
        """Return ``visitor`` as the ``client``'s; a loopback one is the proxy's, so unknown."""
        if client is None or ip_address(client[0]).is_loopback:
            return Visitor(visitor.peer, visitor.sock, _UNKNOWN)
        return Visitor(self._registry.peer(client[0]), visitor.sock, client)

    def _expire(self, visitor: Visitor) -> None:
        self._refuse(visitor, Code.STALLED, _LATE)

    def _refuse(self, visitor: Visitor, code: Code, why: str) -> None:
        """Send an error to the client, and log one at most once a minute."""
        now, sock = self._loop.time(), visitor.sock
        if now - self._said_at >= _QUIET_SECONDS:
            self._said_at = now
            _log.warning("from the proxy %s: %s", visitor.peer.name or "(Unix socket)", why)
        self._forget(visitor)
        with contextlib.suppress(OSError):
            sock.send(refused(code, why))
            sock.shutdown(socket.SHUT_WR)
        # Its bytes are read on for a while: closing at once would reset the connection and lose the answer.
        self._ending[sock] = self._loop.call_later(GRACE_SECONDS, self._close, sock)
        self._loop.add_reader(sock, self._read_past, sock)

    def _read_past(self, sock: socket.socket) -> None:
        try:
            goes_on = bool(sock.recv(READ_BYTES))
        except OSError:
            goes_on = False
        if not goes_on:
            self._close(sock)

    def _forget(self, visitor: Visitor) -> None:
        del self._begun[visitor]
        self._due.pop(visitor).cancel()
        if not self._begun:
            self._all_said.set()
        self._loop.remove_reader(visitor.sock)

    def _close(self, sock: socket.socket) -> None:
        self._ending.pop(sock).cancel()
        self._loop.remove_reader(sock)
        sock.close()
