"""Trusted proxies, and the client address that their headers name.

X-Forwarded-For is preferred to Forwarded (RFC 7239): most proxies write the first, and pass the other on as
the client sent it. Both are read from their end, past the addresses that are trusted proxies as well.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

#: Names the peers of a Unix socket, which have no address.
UNIX = "unix"

_FORWARDED_FOR = re.compile(
    rb'(?:^|;)\s*for\s*=\s*(?:"([^"]*)"|([^;\s]*))\s*(?:;|$)', re.IGNORECASE
)
_BRACKETS = re.compile(r"\[([^\]]*)\](?::\d+)?")
_WITH_PORT = re.compile(r"([\d.]+):\d+")


@dataclass(frozen=True)
class TrustedProxies:
    """Addresses and networks of proxies; ``unix``: all that connect to a Unix socket are proxies."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    unix: bool = False

    @classmethod
    def named(cls, names: Iterable[str]) -> "TrustedProxies":
        """Return the proxies with these ``names``: addresses, networks as 10.0.0.0/8, and "unix".

        Raises:
            ValueError: a name is none of these.
        """
        given_names = tuple(names)
        networks = tuple(ip_network(name) for name in given_names if name != UNIX)
        return cls(networks, UNIX in given_names)

    def trusts(self, address: str) -> bool:
        """Return whether ``address`` is that of a trusted proxy; empty: of a peer at a Unix socket."""
        if not address:
            return self.unix
        ip = _address(address)
        return ip is not None and any(ip in network for network in self.networks)

    def client(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Return the address of the client for which a trusted proxy passes on a request with ``headers``.

        It is the last address in them that is no trusted proxy's, or the first of all. None: they name no
        address, or something else stands in its place.
        """
        hops = _hops(headers)
        client: str | None = None
        for hop in reversed(hops):
            ip = _address(hop)
            if ip is None:
                return client
            client = str(ip)
            if not self.trusts(client):
                return client
        return client


#: No proxy is trusted.
NO_PROXIES = TrustedProxies()


def _hops(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    pairs = list(headers)
    plain = _items(pairs, b"x-forwarded-for")
    if plain:
        return [item.decode("latin-1") for item in plain]
    matches = (_FORWARDED_FOR.search(item) for item in _items(pairs, b"forwarded"))
    return [(match[1] or match[2] or b"").decode("latin-1") if match else "" for match in matches]


def _items(headers: list[tuple[bytes, bytes]], wanted: bytes) -> list[bytes]:
    values = [value for name, value in headers if name == wanted]
    return [item.strip() for item in b",".join(values).split(b",") if item.strip()]


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address in ``text``: bare, in brackets, or with a port; None: there is none."""
    bracketed, with_port = _BRACKETS.fullmatch(text), _WITH_PORT.fullmatch(text)
    bare = bracketed[1] if bracketed else with_port[1] if with_port else text
    try:
        ip = ip_address(bare.partition("%")[0])
    except ValueError:
        return None
    return ip.ipv4_mapped or ip if isinstance(ip, IPv6Address) else ip
