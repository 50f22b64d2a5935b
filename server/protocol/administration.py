"""Who may change what is served: with keys their role decides, without where a request comes from.

A page in a browser on this machine reaches the server, too, and sends no question first for a plain POST.
The browser adds an Origin that the page cannot choose; a page whose name was rebound to an address of this
machine still sends that name as Host.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from server.access import Key
from server.context import Context
from server.errors import ForbiddenError
from server.requests.exchange import headers_named

_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:\[\]/@\s]+)(?::(\d{1,5}))?")
# Proxies add these: what they pass on is not of this machine, though they may be.
_FORWARDED = (b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip")
_OTHER_SITES = ("cross-site", "same-site")


@dataclass(frozen=True)
class Caller:
    """What a request says of where it comes from.

    ``peer``: the address of the other end, empty where it is not known, None where requests come through
    the file system (a Unix socket). ``host``, ``origin``, ``site`` (Sec-Fetch-Site): headers, None where
    there is none. ``forwarded``: a proxy had it.
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
        """Return what a request says in ``headers`` that comes from ``peer``.

        ``host``: of a transport that does not tell it; None: the headers do.
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


def refusal(caller: Caller, own_host: str, allow_admin: bool) -> str:
    """Return why ``caller`` may not change what is served; empty: it may.

    ``own_host``: the address or name that the server was told to listen on. ``allow_admin``: from other
    machines, too, and through proxies; what pages of other sites ask for stays refused.
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


def refusal_of_key(key: Key) -> str:
    """Return why who has ``key`` may not change what is served; empty: he may."""
    return "" if key.role == "admin" else f"key {key.name!r} has the role {key.role}, not admin"


def check_may_change(context: Context, key: Key | None, caller: Caller) -> None:
    """Check that ``caller``, who presented ``key`` if keys are asked for, may change what is served.

    Raises:
        ForbiddenError: they may not, or nobody may by the settings.
    """
    if context.access.wants_keys:
        # A key is nothing that a browser adds by itself: who sends it means it, from wherever.
        why = refusal_of_key(key) if key is not None else "a key is wanted"
    else:
        settings = context.settings
        why = refusal(caller, settings.host, settings.allow_admin)
    if not why and context.settings.model_control == "none":
        why = "not with the setting model_control = none"
    if why:
        raise ForbiddenError(f"loading and unloading: {why}")


def _foreign(caller: Caller, own_host: str, allow_admin: bool) -> str:
    """Return what is wrong with the page that sends the request; empty: nothing, or it is no page."""
    if caller.origin is None:
        return "not for a page of another site" if caller.site in _OTHER_SITES else ""
    scheme, _, place = caller.origin.lower().partition("://")
    name = _name(place)
    same_host = place == (caller.host or "").lower()
    if allow_admin:
        # A name may be anybody's that points here for a moment; an address is what it is.
        own = same_host and (_is_address(name) or _is_own(name, own_host))
        own = own and scheme in ("http", "https")
    else:
        own = _is_own(name, own_host) and _port(place, scheme) == _port(caller.host, scheme)
        own = own and scheme == caller.scheme
    return "" if own else f"not for a page of {_quoted(caller.origin)} (its Origin header)"


def _is_own(name: str, own_host: str) -> bool:
    """Return whether ``name`` means this machine from anywhere, or is what the server listens on."""
    if name == "localhost" or (_is_address(name) and _is_loopback(name)):
        return True
    return name == own_host.lower() and not (_is_address(name) and _address(name).is_unspecified)


def _name(place: str | None) -> str:
    """Return the host of ``HOST[:PORT]``, without the brackets of IPv6; empty where it is none."""
    found = _HOST.fullmatch((place or "").lower())
    return found[1].strip("[]") if found else ""


def _port(place: str | None, scheme: str) -> str:
    found = _HOST.fullmatch((place or "").lower())
    usual = "443" if scheme == "https" else "80"
    return (found[2] or usual) if found else ""


def _is_loopback(peer: str | None) -> bool:
    return peer is None or (_is_address(peer) and _address(peer).is_loopback)


def _is_address(text: str) -> bool:
    try:
        _address(text)
    except ValueError:
        return False
    return True


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    found = ipaddress.ip_address(text)
    return getattr(found, "ipv4_mapped", None) or found


def _quoted(text: str | None) -> str:
    """Return ``text``, which anybody sent, at a length for one line."""
    return repr(text if text is None or len(text) <= 100 else f"{text[:100]}...")
