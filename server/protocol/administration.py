"""Which requests are answered, and which may change what is served: by keys, or by place and name.

Pages of other sites in a browser on this machine can send requests, too: for a plain POST the browser does
not ask the server first. But it adds an Origin header that the page cannot choose. A site may also point
its name to an address of this machine (DNS rebinding), and its page could read all answers as if they were
the site's; but it still sends that name as Host. So without keys only requests under the server's names
are answered.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from server.access import Key
from server.errors import ForbiddenError
from server.requests.exchange import headers_named
from server.service import Service

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]/@\s]+)(?::(\d{1,5}))?")
# Headers of proxies: a request that has one counts as another machine's, even if the proxy runs here.
_FORWARDED = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip")
# The answers for so many hosts are remembered; the number has a limit since clients may send any.
_RECENT_HOSTS = 64
_OTHER_SITES = ("cross-site", "same-site")


@dataclass(frozen=True)
class Caller:
    """Where a request comes from.

    ``peer``: the address of the client; empty where it is not known, None for a Unix socket. ``host``,
    ``origin``, ``site`` (Sec-Fetch-Site): headers, None where there is none. ``forwarded``: it came through
    a proxy.
    """

    peer: str | None
    host: str | None
    origin: str | None = None
    site: str | None = None
    forwarded: bool = False
    scheme: str = "http"

    @classmethod
    def of(
        cls,
        headers: Sequence[tuple[bytes, bytes]],
        peer: str | None,
        scheme: str,
        host: str | None = None,
    ) -> Self:
        """Return where a request with ``headers`` from ``peer`` comes from.

        ``host``: the host that the client asked for; None: the Host header has it.
        """
        hosts, origins, sites = (
            headers_named(name, headers) for name in (b"host", b"origin", b"sec-fetch-site")
        )
        return cls(
            peer=peer,
            host=host or (hosts[0] if len(hosts) == 1 else None),
            origin=", ".join(origins) if origins else None,
            site=next(iter(sites), None),
            forwarded=any(name in _FORWARDED for name, _ in headers),
            scheme=scheme,
        )


def check_host(service: Service, host: str | None) -> None:
    """Check that a request with this Host header is for this server, if no keys are needed.

    Raises:
        ForbiddenError: it is not.
    """
    # No page has a key of its own, so with keys no page learns anything by another name.
    reason = "" if service.access.wants_keys else host_refusal(host, service.names)
    if reason:
        raise ForbiddenError(reason)


@lru_cache(_RECENT_HOSTS)
def host_refusal(host: str | None, names: frozenset[str]) -> str:
    """Return why a request with this Host header is not answered; empty: it is.

    Addresses cannot be pointed elsewhere, and no browser leaves the header out or empty. ``names``: those
    that clients may use, in lower case; "*": any.
    """
    name = _name(host)
    if not host or "*" in names or name in names or _is_address(name):
        return ""
    return (
        f"this server does not answer under the name {_quoted(host)} (the Host header): use its address, "
        "or start it with --allowed-hosts and the name"
    )


def refusal(caller: Caller, own_host: str, allow_admin: bool) -> str:
    """Return why ``caller`` may not change what is served; empty: it may.

    ``own_host``: the address or name that the server was told to listen on. ``allow_admin``: other machines
    and proxies may, too; pages of other sites still may not.
    """
    foreign = _foreign(caller, own_host, allow_admin)
    if foreign or allow_admin:
        return foreign
    if caller.forwarded or not _is_loopback(caller.peer):
        return (
            "only from this machine; start the server with --allow-admin to permit it from others"
        )
    if not _is_own(_name(caller.host), own_host):
        return f"only under a name of this machine, not {_quoted(caller.host)} (its Host header)"
    return ""


def requester_of(key: Key | None, peer: str | None) -> str:
    """Return who asks, for the log: the ``key`` presented, or the address; ``peer``: as Caller has it."""
    if key is not None:
        return f"key {key.name}"
    return "unix socket" if peer is None else peer or "unknown address"


def check_may_change(service: Service, key: Key | None, caller: Caller) -> None:
    """Check that ``caller``, which presented ``key`` if keys are asked for, may change what is served.

    Raises:
        ForbiddenError: it may not, or the settings forbid all changes.
    """
    if service.access.wants_keys:
        # A browser adds no key by itself, so a request with a key is intended wherever it comes from.
        why = ""
        if key is None or key.role != "admin":
            why = (
                f"key {key.name!r} has the role {key.role}, not admin" if key else "a key is wanted"
            )
    else:
        settings = service.settings
        why = refusal(caller, settings.host, settings.allow_admin)
    if not why and service.settings.model_control == "none":
        why = "not with the setting model_control = none"
    if why:
        raise ForbiddenError(f"loading and unloading: {why}")


def _foreign(caller: Caller, own_host: str, allow_admin: bool) -> str:
    """Return why the page that sends the request may not; empty: it may, or no page sends it."""
    if caller.origin is None:
        return "not for a page of another site" if caller.site in _OTHER_SITES else ""
    scheme, _, place = caller.origin.lower().partition("://")
    name = _name(place)
    same_host = place == (caller.host or "").lower()
    if allow_admin:
        # Any site can point its name here for a moment, so only addresses and the own name count.
        own = same_host and (_is_address(name) or _is_own(name, own_host))
        own = own and scheme in ("http", "https")
    else:
        own = _is_own(name, own_host) and _port(place, scheme) == _port(caller.host, scheme)
        own = own and scheme == caller.scheme
    return "" if own else f"not for a page of {_quoted(caller.origin)} (its Origin header)"


def _is_own(name: str, own_host: str) -> bool:
    """Return whether ``name`` is a loopback name or address, or what the server listens on."""
    if name == "localhost" or (_is_address(name) and _is_loopback(name)):
        return True
    return name == own_host.lower() and not (_is_address(name) and _address(name).is_unspecified)


def _name(place: str | None) -> str:
    """Return the host of ``HOST[:PORT]``, without the brackets of IPv6; empty for any other text."""
    match = _HOST.fullmatch((place or "").lower())
    return match[1].strip("[]") if match else ""


def _port(place: str | None, scheme: str) -> str:
    match = _HOST.fullmatch((place or "").lower())
    usual = "443" if scheme == "https" else "80"
    return (match[2] or usual) if match else ""


def _is_loopback(peer: str | None) -> bool:
    return peer is None or (_is_address(peer) and _address(peer).is_loopback)


def _is_address(text: str) -> bool:
    try:
        _address(text)
    except ValueError:
        return False
    return True


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(text)
    return getattr(address, "ipv4_mapped", None) or address


def _quoted(text: str | None) -> str:
    """Return ``text``, which a client chose, quoted and cut to the length of a line."""
    return repr(text if text is None or len(text) <= 100 else f"{text[:100]}...")
