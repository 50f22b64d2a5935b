"""Proxies that are trusted: what they say of the client that a request is for.

X-Forwarded-For goes before Forwarded (RFC 7239): most proxies write the first and pass the other on as the
client sent it. Both are read from their end, as far as those named there are trusted as well.
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
    """Addresses and networks of proxies; ``unix``: whatever connects to a Unix socket is one."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()
    unix: bool = False

    @classmethod
    def named(cls, names: Iterable[str]) -> "TrustedProxies":
        """Return those that settings name: addresses, networks as 10.0.0.0/8, and "unix".

        Raises:
            ValueError: a name is none of them.
        """
        given = tuple(names)
        networks = tuple(ip_network(name) for name in given if name != UNIX)
        return cls(networks, UNIX in given)

    def trusts(self, address: str) -> bool:
        """Return whether ``address`` is a proxy's; empty: a peer through a Unix socket."""
        if not address:
            return self.unix
        found = _address(address)
        return found is not None and any(found in network for network in self.networks)

    def client(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Return the address of the client for which a trusted proxy passes on a request with ``headers``.

        It is the last that is not a trusted proxy's itself, or the first of all. None: they name none, or
        something that is no address stands where it should be.
        """
        hops = _hops(headers)
        client: str | None = None
        for hop in reversed(hops):
            found = _address(hop)
            if found is None:
                return client
            client = str(found)
            if not self.trusts(client):
                return client
        return client


#: What settings that name none trust.
NO_PROXIES = TrustedProxies()


def _hops(headers: Iterable[tuple[bytes, bytes]]) -> list[str]:
    given = list(headers)
    plain = _items(given, b"x-forwarded-for")
    if plain:
        return [item.decode("latin-1") for item in plain]
    found = (_FORWARDED_FOR.search(item) for item in _items(given, b"forwarded"))
    return [(match[1] or match[2] or b"").decode("latin-1") if match else "" for match in found]


def _items(headers: list[tuple[bytes, bytes]], wanted: bytes) -> list[bytes]:
    values = [value for name, value in headers if name == wanted]
    return [item.strip() for item in b",".join(values).split(b",") if item.strip()]


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address in ``text``: bare, in brackets, or with a port; None: there is none."""
    bracketed, with_port = _BRACKETS.fullmatch(text), _WITH_PORT.fullmatch(text)
    bare = bracketed[1] if bracketed else with_port[1] if with_port else text
    try:
        found = ip_address(bare.partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found
