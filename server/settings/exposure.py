"""What it means to listen where others can reach: said once, at the start."""

import ipaddress
import logging
import socket

from server.settings.settings import Settings

_log = logging.getLogger(__name__)


def warn_of_exposure(settings: Settings, host: str | None) -> None:
    """Log a warning when more is open than somebody may think.

    ``host``: the address that is listened on, None: a Unix socket.
    """
    found = exposure(settings, host) if host is not None else ""
    if found:
        _log.warning("%s", found)


def exposure(settings: Settings, host: str) -> str:
    """Return what listening on ``host`` means as ``settings`` are; empty: nothing to warn of."""
    reached = not is_loopback(host)
    if settings.keys is not None:
        if not reached or settings.tls_certificate is not None:
            return ""
        return (
            f"listening on {host} without TLS: who is on the way reads keys and requests "
            "(settings tls_certificate and tls_key, or a proxy)"
        )
    if not reached:
        passed_on = "--allow-admin: whatever a proxy on this machine passes on may load and unload"
        return passed_on if settings.allow_admin else ""
    administration = (
        "and, by --allow-admin, load and unload models"
        if settings.allow_admin
        else "(loading and unloading stays with this machine; --allow-admin gives it to all)"
    )
    return (
        f"listening on {host}: EVERYONE who reaches this address can use the models, read metrics and "
        f"states {administration}; there is no access control without keys (setting keys), a proxy or "
        "firewall must have it"
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``, an address or a name; may ask the resolver."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(item[4][0]).split("%")[0]).is_loopback for item in found)
