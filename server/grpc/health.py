"""gRPC's health checking protocol: whether the server, or one model, serves; checked once, or watched.

The service "" and that of inference are the server: it serves where ServerReady says so. Any other name is
a model's. A watch is sent each change, and at the end of the server that it serves no more.
"""

from collections.abc import Mapping
from typing import Any, Literal

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from pipeline.budget.errors import RefusedError
from server.errors import NotFoundError, NotLoadedError, ServiceError, shown
from server.grpc.call import SERVICE, Call, Work
from server.grpc.service import Method, read_message
from server.protocol.metadata import absence
from server.requests.exchange import headers_named

HEALTH = "grpc.health.v1.Health"
_OF_SERVER = ("", SERVICE)
_POLL_SECONDS = 0.5

Status = Literal["SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"]


async def status_of(call: Call, name: str) -> Status:
    """Return whether the service of this ``name`` serves.

    Raises:
        UnknownKeyError: keys are required, the call has none, and it names a model.
    """
    if call.is_ending:
        return "NOT_SERVING"
    service = call.service
    if name in _OF_SERVER:
        return "NOT_SERVING" if await absence(service) else "SERVING"
    if service.access.wants_keys and call.key is None:
        # Probes have no key, as over HTTP, and learn nothing of models.
        call.key = service.access.key(headers_named(b"authorization", call.headers))
    try:
        await service.repository.check_answers(name)
    except NotLoadedError:
        return "NOT_SERVING"
    except NotFoundError:
        return "SERVICE_UNKNOWN"
    except (ServiceError, RefusedError):
        return "NOT_SERVING"
    return "SERVING"


async def _check(call: Call, request: HealthCheckRequest) -> Mapping[str, Any]:
    status = await status_of(call, request.service)
    if status == "SERVICE_UNKNOWN":
        raise NotFoundError(f"service {shown(request.service)}: no model has this name")
    return {"status": status}


async def watch(call: Call) -> None:
    """Send the status, and again after each change, until the client leaves or the server ends.

    The call gives way to others as a silent stream does: a client that watches calls again by itself.

    Raises:
        BusyError: its place was given to another address.
    """
    with call.exchange() as exchange:
        request = await read_message(call, exchange, HealthCheckRequest)
        sent: Status | None = None
        while True:
            is_last = call.is_ending  # asked first: the last status is that of a server that ends
            status = await status_of(call, request.service)
            if status != sent:
                message = HealthCheckResponse(status=status)
                await exchange.send(message.SerializeToString(), more=True)
                sent = status
            if is_last:
                return
            if not call.is_ending:
                await call.wait_as_silent(_POLL_SECONDS)


METHODS: dict[str, Work] = {
    "Check": Method(HealthCheckRequest, HealthCheckResponse, _check),
    "Watch": watch,
}
