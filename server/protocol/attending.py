"""What happens to every request, over HTTP and gRPC alike: an id, a key, a trace, a line in the log."""

import logging
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from random import getrandbits
from typing import Any, Protocol

from server.access import Admitted, Key
from server.causes import requester
from server.faults import Fault
from server.operation.logs import request_id
from server.operation.tracing import Trace, Tracing, current
from server.protocol.errors import reported
from server.requests.exchange import headers_named
from server.service import Service

_log = logging.getLogger("server.access")


class Attended(Protocol):
    """A request over HTTP or a call over gRPC, as ``attend`` and most handlers need it."""

    #: The server that is asked.
    service: Service
    #: The word for it in the log.
    kind: str
    #: The key that was presented, where keys are asked for.
    key: Key | None
    #: The id under which the log has it.
    identity: str

    @property
    def headers(self) -> Sequence[tuple[bytes, bytes]]:
        """Names in lower case."""

    @property
    def admitted(self) -> Admitted | None:
        """Which clients may ask it; None: there is no such route."""

    @property
    def who(self) -> str:
        """Who asks, for the log: the key that was presented, or the address."""

    @property
    def is_change(self) -> bool:
        """Whether it asks for a change of what is served."""

    @property
    def is_probe(self) -> bool:
        """Whether it is a health check or a scrape, which comes every few seconds."""

    async def serve(self) -> None:
        """Answer it; raises any error."""

    @property
    def is_begun(self) -> bool:
        """Whether its answer has begun: then it is too late to send an error."""

    async def refuse(self, fault: Fault) -> None:
        """Answer that it failed, and why."""

    def begin_trace(self, tracing: Tracing) -> Trace:
        """Begin its trace."""

    def end_trace(self, trace: Trace) -> None:
        """End it."""

    @property
    def outcome(self) -> str:
        """How it ended: "well", "busy", or another word for a failure."""

    @property
    def about(self) -> Mapping[str, Any]:
        """What the log says of it."""


_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


def identity(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the client's name of its request (X-Request-ID), where that is sane, or a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _ID.fullmatch(offered := value.decode("latin-1")):
            return offered
    return f"{getrandbits(128):032x}"


async def attend(asked: Attended) -> None:
    """Answer ``asked``, with an error where that fails, and log it."""
    service = asked.service
    began, trace, said = time.perf_counter(), None, ""
    asked.identity = name = identity(asked.headers)
    token, before = request_id.set(name), requester.set("unknown")
    if service.tracing is not None and not asked.is_probe:
        trace = asked.begin_trace(service.tracing)
        current.set(trace)
    try:
        if asked.admitted not in service.access.keyless:
            asked.key = service.access.key(headers_named(b"authorization", asked.headers))
        requester.set(asked.who)
        await asked.serve()
    except Exception as exc:
        if asked.is_begun:
            raise
        said = await _refused(asked, exc)
    finally:
        if trace is not None:
            asked.end_trace(trace)
        # Requests that were answered well are counted only: a line takes a tenth of a short request's time.
        if asked.outcome != "well" or service.settings.access_log == "all":
            _write(asked, time.perf_counter() - began, said)
        requester.reset(before)
        request_id.reset(token)


async def _refused(asked: Attended, exc: Exception) -> str:
    """Answer with the fault that ``exc`` is; return its message.

    The fault refers to ``exc``, and that to the frames that it passed: a fault in one of them is a circle.
    """
    fault = reported(exc, asked.service.settings.repository)
    await asked.refuse(fault)
    return fault.message


def _write(asked: Attended, seconds: float, error: str) -> None:
    """Write the line of one request, with the ``error`` that it was told, unless it says nothing.

    A refusal is counted (outcome "busy") and comes in floods, but for those of operators; a fault has a
    line of its own.
    """
    if (asked.outcome == "busy" and not asked.is_change) or asked.is_probe:
        return
    # The name of a key, never a header: nothing that a client keeps secret is in a log.
    key = {"key": asked.key.name} if asked.key is not None else {}
    if asked.is_change and not key:
        key = {"by": asked.who}
    why = {"error": error} if error else {}
    _log.info(asked.kind, extra={**asked.about, "seconds": round(seconds, 6), **key, **why})
