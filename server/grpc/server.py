"""The gRPC server: on the event loop of the HTTP server, with its limits, its certificate and its end."""

import asyncio

import grpc
from grpc import aio

from server.context import Context, connection_limits
from server.grpc.call import CallPlaces
from server.grpc.service import handlers
from server.transport.certificate import Certificate
from server.transport.limits import HEADER_BYTES, allowed_files
from server.transport.listener import PortError

# No message may be compressed: gRPC has no limit for what one opens to.
_UNCOMPRESSED = 1
# Calls that run, as many that wait for a place, and those that are being refused. The library counts all of
# them, and refuses more calls without a hint, of any client.
_CALLS_EACH = 4
# Time for a client that has had an answer to call again, and for the news of the end to reach it.
_PARTING_SECONDS = 0.05


class GrpcServer:
    """Answers calls from ``start`` to ``end``."""

    def __init__(self, context: Context, certificate: Certificate | None) -> None:
        settings = self._settings = context.settings
        self._certificate = certificate
        self._ending: asyncio.Task[None] | None = None
        self._server = aio.server(
            options=_options(context),
            maximum_concurrent_rpcs=_CALLS_EACH * settings.max_connections,
        )
        # As many calls wait for a place as there are places.
        limits = connection_limits(settings, settings.max_connections, settings.max_connections)
        self._shares = CallPlaces(limits, asyncio.get_running_loop().time)
        self._server.add_generic_rpc_handlers((handlers(context, self._shares),))

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


def _options(context: Context) -> list[tuple[str, int]]:
    settings = context.settings
    return [
        ("grpc.so_reuseport", 0),  # else two servers on one port would share it in silence
        ("grpc.max_receive_message_length", _message_limit(context)),
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
        # Else the library lets clients send more and more before the server asks for it.
        ("grpc.http2.bdp_probe", 0),
    ]


def _message_limit(context: Context) -> int:
    """Return how long a message may be: it lies in memory twice while it is read."""
    return min(context.settings.max_body, context.request_memory.room_bytes // 2)


def _credentials(certificate: Certificate) -> grpc.ServerCredentials:
    """Return those of ``certificate``, as it is when a client comes."""

    def now() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([certificate.pem])

    return grpc.dynamic_ssl_server_credentials(now(), now)
