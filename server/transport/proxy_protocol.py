"""The PROXY protocol, versions 1 and 2: the header with which a proxy names the client of a connection.

A proxy that only copies bytes cannot add a header field. It sends this header before the client's first
byte, also before TLS. A trusted proxy must always send it: if it could be left out, a client could send its
own. It is read before the connection waits for a place, so that it counts there among those of its client.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

#: Bytes that a header of version 2 may have: two addresses take 52, the rest is for other information.
HEADER_BYTES = 4096

_SIGNATURE_1: Final = b"PROXY "
_LINE_BYTES = 107
_LINE = re.compile(
    rb"PROXY (?:UNKNOWN(?: [^\r\n]*)?|TCP([46]) (\S+) (\S+) (\d{1,5}) (\d{1,5}))\r\n"
)

_SIGNATURE_2: Final = b"\r\n\r\n\0\r\nQUIT\n"
_BEGINNING_BYTES = len(_SIGNATURE_2) + 4  # version and command, family, length
# The shortest header, and the shortest that names a client in version 1.
_MIN_BYTES = len(b"PROXY UNKNOWN\r\n")
_TCP, _MIN_TCP_BYTES = b"PROXY TCP", len(b"PROXY TCP6 :: :: 1 1\r\n")
_LOCAL, _PROXY = 0x20, 0x21
# By family and transport: bytes of an address, and of the addresses and ports of both ends.
_UNSPECIFIED, _TCP4, _TCP6, _UNIX = 0x00, 0x11, 0x21, 0x31
_FAMILIES = {_UNSPECIFIED: (0, 0), _TCP4: (4, 12), _TCP6: (16, 36), _UNIX: (0, 216)}

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


def missing_bytes(data: bytes) -> int:
    """Return how many bytes behind ``data``, with which a header begins, surely belong to it as well."""
    if len(data) < _MIN_BYTES:
        return _MIN_BYTES - len(data)
    if data.startswith(_SIGNATURE_1):
        return max(_MIN_TCP_BYTES - len(data), 1) if data.startswith(_TCP) else 1
    if len(data) < _BEGINNING_BYTES:
        return _BEGINNING_BYTES - len(data)
    return (
        _BEGINNING_BYTES + int.from_bytes(data[_BEGINNING_BYTES - 2 : _BEGINNING_BYTES]) - len(data)
    )
