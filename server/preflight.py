"""What a start can know before it does what takes long: keys, certificate, addresses, gRPC."""

from contextlib import ExitStack, closing
from importlib.util import find_spec
from socket import socket

from server.access import Access
from server.errors import ServiceError
from server.settings.settings import Settings
from server.transport.certificate import Certificate
from server.transport.listener import UnixListener, listen

#: Of the extra ``grpc``.
GRPC_PACKAGES = ("grpc", "grpc_health", "grpc_reflection")


class GrpcError(ServiceError):
    """gRPC is asked for and cannot be served; the message says what is missing."""


def check_start(settings: Settings, *, inherits: bool) -> None:
    """Check that a server with ``settings`` could start now; nothing stays open.

    Large libraries are looked for and not loaded. ``inherits``: it listens on a socket of the service
    manager.

    Raises:
        KeyFileError, CertificateError, PortError, GrpcError: it could not.
    """
    Access(settings.keys, settings.public_metrics)
    certificate_of(settings)
    with ExitStack() as listeners:
        if not inherits:
            listeners.enter_context(closing(listener_of(settings)))
        if settings.grpc_port is not None:
            for name in GRPC_PACKAGES:
                if find_spec(name) is None:
                    raise no_grpc(f"No module named '{name}'")
            listeners.enter_context(closing(grpc_listener(settings.host, settings.grpc_port)))


def certificate_of(settings: Settings) -> Certificate | None:
    """Return the certificate that the settings name, read; None: there is none.

    Raises:
        CertificateError: it cannot be used.
    """
    if settings.tls_certificate is None:
        return None
    return Certificate(settings.tls_certificate, settings.tls_key)


def listener_of(settings: Settings) -> socket:
    """Return a socket that listens for HTTP where the settings say.

    Raises:
        PortError: that cannot be.
    """
    if settings.unix_socket is not None:
        return UnixListener(settings.unix_socket, int(settings.unix_socket_mode, 8))
    return listen(settings.host, settings.port)


def grpc_listener(host: str, port: int) -> socket:
    """Return a socket that listens for gRPC.

    Raises:
        PortError: that cannot be.
    """
    return listen(host, port, "--grpc-port")


def no_grpc(reason: object) -> GrpcError:
    """Return the error of a start without the library."""
    return GrpcError(
        f"grpc_port: gRPC is not installed ({reason}): pip install '.[grpc]' in a clone of Layerstream"
    )
