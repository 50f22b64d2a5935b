"""How many bytes have come on a connection of gRPC's library, which hands on complete messages only.

The kernel counts them for each socket (TCP_INFO, Linux 4.1). The library does not hand out its sockets, so
the one of a connection is searched among this process's descriptors, by the address of the other end.
"""

import os
import re
import socket
import sys
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from urllib.parse import unquote

_PEER = re.compile(r"ipv[46]:\[?(.*?)\]?:(\d+)")
# In tcp_info: tcpi_bytes_received, of 64 bits.
_OFFSET, _BYTES = 128, 8
_FOLDER = Path("/proc/self/fd")

Address = tuple[str, int]


def address_of(peer: str) -> Address | None:
    """Return address and port of ``peer``, as gRPC calls the other end; None: it has none."""
    match = _PEER.fullmatch(unquote(peer))
    return (match[1], int(match[2])) if match else None


class ReceivedBytes:
    """Counts the bytes that have come from ``peer``, the other end of one connection of this process."""

    def __init__(self, peer: Address) -> None:
        self._peer = _plain(peer)
        self._descriptor: int | None = None

    def now(self) -> int | None:
        """Return how many; None: the connection is closed, or the kernel does not say."""
        if self._descriptor is not None:
            count = self._of(self._descriptor)
            if count is not None:
                return count
        self._descriptor = None
        for descriptor in _descriptors():
            count = self._of(descriptor)
            if count is not None:
                self._descriptor = descriptor
                return count
        return None

    def _of(self, descriptor: int) -> int | None:
        """Return the count of ``descriptor``, if it is the socket of this connection."""
        try:
            # A copy: nothing that is done to it closes the library's own.
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                if copy.family not in (socket.AF_INET, socket.AF_INET6):
                    return None
                if _plain(copy.getpeername()[:2]) != self._peer:
                    return None
                info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _OFFSET + _BYTES)
        except OSError:  # no socket, or closed by now
            return None
        if len(info) < _OFFSET + _BYTES:
            return None
        return int.from_bytes(info[_OFFSET:], sys.byteorder)


def _descriptors() -> list[int]:
    try:
        return [int(path.name) for path in _FOLDER.iterdir()]
    except OSError:
        return []


def _plain(address: Address) -> Address:
    """Return ``address``, as IPv4 where a socket of IPv6 has one of those."""
    host = ip_address(address[0].partition("%")[0])
    mapped = host.ipv4_mapped if isinstance(host, IPv6Address) else None
    return str(mapped or host), address[1]
