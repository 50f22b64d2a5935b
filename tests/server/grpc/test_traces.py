"""Traces of calls: a span of each in the trace that its metadata names, with its wait and its sweep."""

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from server.grpc.call import SERVICE
from server.operation.tracing import Tracing
from tests.server.conftest import SettingsFactory
from tests.server.grpc.stubs import asking, calling
from tests.server.support import inputs_for, serving

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = (("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01"),)


async def test_spans_of_calls(settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = InMemorySpanExporter()
    monkeypatch.setattr(Tracing, "to", lambda endpoint: Tracing(SimpleSpanProcessor(kept)))
    chosen = settings(models=("tiny",), traces="http://localhost:1/v1/traces")
    async with serving(chosen) as service, calling(service.context) as client:
        await client("ModelInfer", asking("tiny", inputs_for("tiny")), metadata=PARENT)
        await client.refused("ModelInfer", asking("nobody", {}), metadata=PARENT)
        await client("ServerLive", metadata=PARENT)
        await client("ServerMetadata")
    spans = kept.get_finished_spans()
    traced = [span for span in spans if f"{span.context.trace_id:032x}" == TRACE]
    infer = f"{SERVICE}/ModelInfer"
    assert [span.name for span in traced] == ["queue", "sweep", infer, infer]
    assert [span.name for span in spans if span not in traced] == [f"{SERVICE}/ServerMetadata"]
    queue, sweep, answered, refused = traced
    assert queue.parent == sweep.parent
    assert sweep.parent is not None
    assert sweep.parent.span_id == answered.context.span_id
    for span, code in ((answered, 0), (refused, 5)):  # OK, NOT_FOUND
        assert dict(span.attributes or {}) == {
            "rpc.system": "grpc",
            "rpc.service": SERVICE,
            "rpc.method": "ModelInfer",
            "rpc.grpc.status_code": code,
        }
        assert span.status.status_code is StatusCode.UNSET
