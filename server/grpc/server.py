"""The gRPC server: on the event loop of the HTTP server, with its limits, its certificate and its end."""

import asyncio
import logging
from collections.abc import Mapping

import grpc
from grpc import aio

from server.grpc import health, reflection
from server.grpc.call import SERVICE, Call, CallPlaces, ServicerContext, Work
from server.grpc.service import METHODS
from server.protocol.attending import attend
from server.service import Service, connection_limits
from server.transport.certificate import Certificate
from server.transport.limits import HEADER_BYTES, allowed_files
from server.transport.listener import PortError

_log = logging.getLogger(__name__)

# No message may be compressed: gRPC has no limit for what one opens to.
_UNCOMPRESSED = 1
# Calls that run, as many that wait for a place, and those that are being refused. The library counts all of
# them, and refuses more calls without a hint, of any client.
_CALLS_EACH = 4
#: Every service.
SERVICES = (SERVICE, health.HEALTH, reflection.REFLECTION, reflection.REFLECTION_ALPHA)
# A client that sends one every five seconds may be a little early.
_PING_SECONDS = 4.5
# Time for a client that has had an answer to call again, and for the news of the end to reach it.
_PARTING_SECONDS = 0.05


class GrpcServer:
    """Answers calls from ``begin`` or ``start`` to ``end``."""

    def __init__(self, service: Service, certificate: Certificate | None) -> None:
        settings = self._settings = service.settings
        self._certificate = certificate
        self._ending: asyncio.Task[None] | None = None
        self._server = aio.server(
            options=_options(service),
            maximum_concurrent_rpcs=_CALLS_EACH * settings.max_connections,
        )
        # As many calls wait for a place as there are places.
        limits = connection_limits(settings, settings.max_connections, settings.max_connections)
        self._shares = CallPlaces(limits, asyncio.get_running_loop().time)
        described = reflection.methods(SERVICES)
        all_methods = (METHODS, health.METHODS, described, described)
        self._server.add_generic_rpc_handlers(
            [
                _handler(service, self._shares, name, methods)
                for name, methods in zip(SERVICES, all_methods, strict=True)
            ]
        )

    async def begin(self) -> None:
        """Listen where the settings say; raises as ``start``."""
        host, port = self._settings.host, self._settings.grpc_port
        assert port is not None  # without it nobody creates this
        port = await self.start(host, port)
        _log.info("gRPC%s: %s:%d", " over TLS" if self._certificate else "", host, port)

    async def start(self, host: str, port: int) -> int:
        """Listen; return the port (of 0: the one that was free).

        Raises:
            PortError: the address cannot be listened on.
        """
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if self._certificate is None:
                found = self._server.add_insecure_port(place)
            else:
                found = self._server.add_secure_port(place, _credentials(self._certificate))
        except RuntimeError as exc:
            raise PortError(f"cannot listen on {place} for gRPC") from exc
        await self._server.start()
        return found

    def end(self) -> "asyncio.Task[None]":
        """Take no more calls; done when those in flight are, or their time to drain is over."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._ended())
        return self._ending

    async def _ended(self) -> None:
        """Let new calls wait until their channel knows that the server goes, then refuse them.

        The library cancels calls that come while it stops, and does not hand them on.
        """
        refuse = self._shares.close()
        await asyncio.sleep(_PARTING_SECONDS)
        stopping = asyncio.ensure_future(self._server.stop(self._settings.drain_timeout))
        await asyncio.sleep(_PARTING_SECONDS)
        refuse()
        await stopping


def grpc_server(service: Service) -> GrpcServer:
    """Return the listener of a service for its ``grpc_port``."""
    return GrpcServer(service, service.certificate)


def _handler(
    service: Service, shares: CallPlaces, service_name: str, methods: Mapping[str, Work]
) -> grpc.GenericRpcHandler:
    """Return what answers calls to the service of this name, as many as ``shares`` has for each address.

    All methods are streams to gRPC: on the wire a call with one message looks the same. So the service
    reads a message when it wants one, and waits until an answer has been sent.
    """

    def handler(name: str, work: Work) -> "grpc.RpcMethodHandler[bytes, bytes]":
        async def serve(_: object, wire: ServicerContext) -> None:
            await attend(Call(service, shares, name, wire, work, service_name))

        return grpc.stream_stream_rpc_method_handler(serve)

    return grpc.method_handlers_generic_handler(
        service_name, {name: handler(name, work) for name, work in methods.items()}
    )


def _options(service: Service) -> list[tuple[str, int]]:
    settings = service.settings
    return [
        ("grpc.so_reuseport", 0),  # else two servers on one port would share it in silence
        ("grpc.max_receive_message_length", _message_limit(service)),
        ("grpc.max_send_message_length", -1),
        # One limit: between a soft and a hard one the library refuses at random.
        ("grpc.max_metadata_size", HEADER_BYTES),
        ("grpc.absolute_max_metadata_size", HEADER_BYTES),
        # Else connections to this port would take the descriptors of those to the other one.
        ("grpc.max_allowed_incoming_connections", allowed_files(settings.max_connections, 2)[0]),
        # From the first byte of a connection to the end of its greeting, with TLS or without.
        ("grpc.server_handshake_timeout_ms", round(settings.header_timeout * 1e3)),
        ("grpc.max_concurrent_streams", settings.max_connections),
        ("grpc.max_connection_idle_ms", round(settings.idle_timeout * 1e3)),
        ("grpc.compression_enabled_algorithms_bitset", _UNCOMPRESSED),
        # Clients may ask for a sign of life so often, also between calls: the library would allow it every
        # five minutes, and end the connections of clients that keep theirs open through a router's table.
        ("grpc.http2.min_ping_interval_without_data_ms", round(_PING_SECONDS * 1e3)),
        ("grpc.keepalive_permit_without_calls", 1),
        # Else the library lets clients send more and more before the server asks for it.
        ("grpc.http2.bdp_probe", 0),
    ]


def _message_limit(service: Service) -> int:
    """Return how long a message may be: it lies in memory twice while it is read."""
    return min(service.settings.max_body, service.request_memory.room_bytes // 2)


def _credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """Return those of ``certificate``, as it is when a client comes."""

    def now() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([certificate.pem])

    return grpc.dynamic_ssl_server_credentials(now(), now)
