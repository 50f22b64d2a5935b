"""What it means to listen where others can reach: said once, at the start."""

import ipaddress
import logging
import socket

from server.settings.settings import Settings

_log = logging.getLogger(__name__)


def warn_of_exposure(settings: Settings) -> None:
    """Log a warning when others than this machine can reach the server."""
    if not is_loopback(settings.host):
        _log.warning("%s", exposure(settings.host, settings.allow_admin))
    elif settings.allow_admin:
        _log.warning(
            "--allow-admin: whatever a proxy on this machine passes on may load and unload"
        )


def exposure(host: str, allow_admin: bool) -> str:
    """Return what listening on ``host``, no address of this machine alone, means."""
    administration = (
        "and, by --allow-admin, load and unload models"
        if allow_admin
        else "(loading and unloading stays with this machine; --allow-admin gives it to all)"
    )
    return (
        f"listening on {host}: EVERYONE who reaches this address can use the models, read metrics and "
        f"states {administration}; there is no access control, a proxy or firewall must have it"
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches ``host``, an address or a name; may ask the resolver."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(item[4][0]).split("%")[0]).is_loopback for item in found)
