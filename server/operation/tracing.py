"""Traces of requests for OpenTelemetry. Nothing of it is imported unless it is asked for.

Spans are made after the work that they describe, where that is counted (server/metrics/requests.py): one of
the request, in the trace that its traceparent names, and within it one of the wait for its turn and one of
its sweep. Reads and kernels overlap, so they are times of the sweep and no spans of their own.
"""

import contextvars
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from pipeline.execution.statistics import SweepStatistics
from server.errors import ServiceError
from server.operation.process import installed_version

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

#: The trace of the request that this task answers.
current: contextvars.ContextVar["Trace | None"] = contextvars.ContextVar("trace", default=None)

_NAME = re.compile(r"(?<=/models/)[^/:]+")
# To send what is left when the server ends.
_LAST_MILLISECONDS = 3000


class TracingError(ServiceError):
    """Traces are asked for and cannot be sent; the message says what is missing."""


class Tracing:
    """Begins traces, whose spans go to ``processor``."""

    def __init__(self, processor: "SpanProcessor") -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        about = {"service.name": "layerstream", "service.version": installed_version()}
        self._provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("layerstream")
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str) -> Self:
        """Send spans to ``endpoint`` by OTLP over HTTP, from a thread of their own.

        Raises:
            TracingError: OpenTelemetry is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as exc:
            raise TracingError(
                f"traces: OpenTelemetry is not installed ({exc}); the extra otel brings it"
            ) from exc
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=5)))

    def begin(self, method: str, path: str, headers: Mapping[str, str]) -> "Trace":
        """Begin the span of a request."""
        path = path[:200]
        about = {"http.request.method": method, "url.path": path}
        return self._begun(f"{method} {_NAME.sub('{name}', path)}", headers, about)

    def begin_call(self, service: str, method: str, metadata: Mapping[str, str]) -> "Trace":
        """Begin the span of a call over gRPC."""
        about = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
        return self._begun(f"{service}/{method}", metadata, about)

    def _begun(self, name: str, headers: Mapping[str, str], about: Mapping[str, str]) -> "Trace":
        from opentelemetry.trace import SpanKind

        parent = self._propagator.extract(headers)
        started_at = time.time_ns()  # noqa: TID251  a date
        ahead = started_at - time.monotonic_ns()
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, about, start_time=started_at)
        return Trace(self, span, ahead)

    def add(
        self, parent: "Trace", name: str, started_at: int, finished_at: int, **values: float | str
    ) -> None:
        """Add a span that is over, in nanoseconds since 1970."""
        from opentelemetry.trace import set_span_in_context

        within = set_span_in_context(parent.span)
        attributes = {f"layerstream.{key}": value for key, value in values.items()}
        self._tracer.start_span(name, within, attributes=attributes, start_time=started_at).end(
            finished_at
        )

    def close(self) -> None:
        """Send what is left, for a moment; blocks."""
        self._provider.force_flush(_LAST_MILLISECONDS)
        self._provider.shutdown()


class Trace:
    """The span of one request, until ``end``.

    ``ahead``: what the day's clock was ahead of the monotonic one when it started, in nanoseconds. It holds
    for all of the trace, so that its durations are right also if the day's clock is set meanwhile.
    """

    def __init__(self, tracing: Tracing, span: "Span", ahead: int) -> None:
        self._tracing = tracing
        self._ahead = ahead
        self.span = span

    def _now(self) -> int:
        """Return the time in nanoseconds since 1970."""
        return time.monotonic_ns() + self._ahead

    def sweep(self, model: str, statistics: SweepStatistics, queue_seconds: float) -> None:
        """Add the wait and the sweep of a request that was computed just now."""
        finished_at = self._now()
        started_at = finished_at - int(statistics.delay_seconds * 1e9)
        queued = started_at - int(queue_seconds * 1e9)
        self._tracing.add(self, "queue", queued, started_at, model=model)
        self._tracing.add(
            self,
            "sweep",
            started_at,
            finished_at,
            model=model,
            kernel_seconds=statistics.kernel_seconds,
            read_seconds=statistics.read_seconds,
            stall_seconds=statistics.stall_seconds,
            read_bytes=statistics.read_bytes,
        )

    def end(self, status: int) -> None:
        """End it with the ``status`` of its answer."""
        self._end("http.response.status_code", status, is_fault=status >= 500)

    def end_call(self, code: int, is_fault: bool) -> None:
        """End that of a call with its status ``code``."""
        self._end("rpc.grpc.status_code", code, is_fault)

    def _end(self, name: str, value: int, is_fault: bool) -> None:
        from opentelemetry.trace import Status, StatusCode

        self.span.set_attribute(name, value)
        if is_fault:
            self.span.set_status(Status(StatusCode.ERROR))
        self.span.end(self._now())
