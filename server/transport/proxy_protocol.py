"""The PROXY protocol, versions 1 and 2: the header with which a proxy says whose connection it passes on.

A proxy that copies bytes cannot add a field to them, and says it before the first one: also before TLS. Who
is trusted to say it must: a header that may be left out could be a client's.
"""

import asyncio
import logging
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, cast

from server.transport.connection import BUFFER, Connection
from server.transport.encryption import Encrypted

_log = logging.getLogger(__name__)

#: Bytes that a header of version 2 may have: two addresses take 52, the rest is what proxies say beside.
HEADER_BYTES = 4096

_SIGNATURE_1: Final = b"PROXY "
_LINE_BYTES = 107
_LINE = re.compile(
    rb"PROXY (?:UNKNOWN(?: [^\r\n]*)?|TCP([46]) (\S+) (\S+) (\d{1,5}) (\d{1,5}))\r\n"
)

_SIGNATURE_2: Final = b"\r\n\r\n\0\r\nQUIT\n"
_BEGINNING_BYTES = len(_SIGNATURE_2) + 4  # version and command, family, length
_LOCAL, _PROXY = 0x20, 0x21
# By family and transport: bytes of an address, and of all that is said of both ends.
_UNSPECIFIED, _TCP4, _TCP6, _UNIX = 0x00, 0x11, 0x21, 0x31
_FAMILIES = {_UNSPECIFIED: (0, 0), _TCP4: (4, 12), _TCP6: (16, 36), _UNIX: (0, 216)}

_QUIET_SECONDS = 60.0
_WANTED = "a PROXY header is wanted here first (setting proxy_protocol)"


class ProxyHeaderError(ValueError):
    """What came is no PROXY header; the message says what is wrong with it."""


@dataclass(frozen=True)
class ProxyHeader:
    """The first ``size`` bytes of a connection, and the ``client`` that they name, with its port.

    None: they name none, as where a proxy asks on its own behalf.
    """

    size: int
    client: tuple[str, int] | None


def read_header(data: bytes) -> ProxyHeader | None:
    """Return the header with which ``data`` begins; None: it has not come to its end.

    Raises:
        ProxyHeaderError: there is none, or it is wrong.
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
    found = _LINE.fullmatch(line + end)
    if found is None:
        raise ProxyHeaderError("the PROXY header is not PROXY TCP4 or TCP6, addresses, ports")
    if found[1] is None:
        return ProxyHeader(len(found[0]), None)
    source, _ = (_address(text, int(found[1])) for text in (found[2], found[3]))
    port, _ = (_port(text) for text in (found[4], found[5]))
    return ProxyHeader(len(found[0]), (source, port))


def _address(text: bytes, version: int) -> str:
    try:
        found = ip_address(text.decode("ascii"))
    except ValueError:
        found = None
    if found is None or found.version != version or b"%" in text:
        raise ProxyHeaderError("the PROXY header has something else where an address should be")
    return _written(found)


def _written(address: IPv4Address | IPv6Address) -> str:
    return str(getattr(address, "ipv4_mapped", None) or address)


def _port(text: bytes) -> int:
    found = int(text)
    if found > 0xFFFF or b"%d" % found != text:
        raise ProxyHeaderError("the PROXY header has something else where a port should be")
    return found


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


class Announced(asyncio.BufferedProtocol):
    """Reads the header of a proxy's ``connection``, then lets the event loop talk ``to`` that, or its TLS.

    The connection is one from its first byte: it has a place, and a header has the time of a request's.
    """

    _said_at = float("-inf")

    def __init__(self, connection: Connection, to: Connection | Encrypted) -> None:
        self._connection, self._to = connection, to
        self._begun = b""
        connection.is_announced = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._to.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._to.connection_lost(exc)

    def pause_writing(self) -> None:
        self._to.pause_writing()

    def resume_writing(self) -> None:
        self._to.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        return BUFFER

    def buffer_updated(self, nbytes: int) -> None:
        if self._connection.is_closing():
            return
        data = self._begun + BUFFER[:nbytes]
        try:
            header = read_header(data)
        except ProxyHeaderError as exc:
            self._refuse(str(exc))
            return
        if header is None:
            self._begun = data
            return
        self._begun = b""
        self._transport.set_protocol(self._to)
        self._connection.announce(header.client)
        rest = data[header.size :]  # no more than one read: the header has ended in it
        if rest:
            self._to.get_buffer(len(rest))[: len(rest)] = rest
            self._to.buffer_updated(len(rest))

    def _refuse(self, why: str) -> None:
        """Tell whoever can read it, and once a minute who looks after the server."""
        now = self._connection.loop.time()
        if now - Announced._said_at >= _QUIET_SECONDS:
            Announced._said_at = now
            _log.warning(
                "from the proxy %s: %s", self._connection.peer.name or "(Unix socket)", why
            )
        self._connection.refuse(400, why)
