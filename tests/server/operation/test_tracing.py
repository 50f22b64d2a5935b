"""Traces: the spans of a request or a call, in the trace that the client names."""

import itertools
import time

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from pipeline.execution.statistics import SweepStatistics
from server.grpc.call import SERVICE
from server.operation.tracing import Tracing
from tests.server.conftest import SettingsFactory
from tests.server.grpc.stubs import asking, calling
from tests.server.support import inputs_for, request, serving

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
PATH = "/v2/models/tiny/infer"


async def test_spans_of_a_request(
    settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(Tracing, "to", lambda endpoint: Tracing(SimpleSpanProcessor(exporter)))
    async with serving(settings(traces="http://localhost:1/v1/traces")) as service:
        body = request(inputs_for("tiny"))
        wrong: dict[str, object] = {"inputs": []}
        for sent in (body, wrong):
            await service.client.post(PATH, json=sent, headers=PARENT)
        await service.client.post(PATH, json=body, headers={"traceparent": "nonsense"})
        for path in ("/metrics", "/v2/health/ready"):
            await service.client.get(path, headers=PARENT)
    spans = exporter.get_finished_spans()
    traced = [span for span in spans if f"{span.context.trace_id:032x}" == TRACE]
    assert [span.name for span in traced] == [
        "queue",
        "sweep",
        *["POST /v2/models/{name}/infer"] * 2,
    ]
    assert len(spans) == len(traced) + 3
    queue, inference, answered, refused = traced
    assert answered.parent is not None
    assert f"{answered.parent.span_id:016x}" == "00f067aa0ba902b7"
    for part in (queue, inference):
        assert part.parent is not None
        assert part.parent.span_id == answered.context.span_id
    assert times(queue)[0] <= times(queue)[1] == times(inference)[0] < times(inference)[1]
    assert times(inference)[1] <= times(answered)[1]
    found = dict(inference.attributes or {})
    assert found["layerstream.model"] == "tiny"
    assert 0 < float(str(found["layerstream.kernel_seconds"])) < 60
    statuses = [
        (span.attributes or {})["http.response.status_code"] for span in (answered, refused)
    ]
    assert statuses == [200, 400]


def times(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


async def test_spans_of_calls(settings: SettingsFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = InMemorySpanExporter()
    monkeypatch.setattr(Tracing, "to", lambda endpoint: Tracing(SimpleSpanProcessor(exporter)))
    chosen = settings(models=("tiny",), traces="http://localhost:1/v1/traces")
    async with serving(chosen) as service, calling(service.inside) as client:
        await client(
            "ModelInfer", asking("tiny", inputs_for("tiny")), metadata=tuple(PARENT.items())
        )
        await client.refused("ModelInfer", asking("nobody", {}), metadata=tuple(PARENT.items()))
        await client("ServerLive", metadata=tuple(PARENT.items()))
        await client("ServerMetadata")
    spans = exporter.get_finished_spans()
    traced = [span for span in spans if f"{span.context.trace_id:032x}" == TRACE]
    infer = f"{SERVICE}/ModelInfer"
    assert [span.name for span in traced] == ["queue", "sweep", infer, infer]
    assert [span.name for span in spans if span not in traced] == [f"{SERVICE}/ServerMetadata"]
    queue, inference, answered, refused = traced
    assert queue.parent == inference.parent
    assert inference.parent is not None
    assert inference.parent.span_id == answered.context.span_id
    for span, code in ((answered, 0), (refused, 5)):  # OK, NOT_FOUND
        assert dict(span.attributes or {}) == {
            "rpc.system": "grpc",
            "rpc.service": SERVICE,
            "rpc.method": "ModelInfer",
            "rpc.grpc.status_code": code,
        }
        assert span.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("step", [20, -20])
@pytest.mark.parametrize("stepped_before", range(5))
def test_durations_are_right_while_the_clock_is_set(
    step: int, stepped_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its n-th reading and all later ones are ``step`` seconds off."""
    exporter, readings = InMemorySpanExporter(), itertools.count()
    day = time.time_ns  # noqa: TID251  what is faked

    def stepping() -> int:
        return day() + (step * 10**9 if next(readings) >= stepped_before else 0)

    monkeypatch.setattr(time, "time_ns", stepping)
    monkeypatch.setattr("opentelemetry.sdk.trace.time_ns", stepping)
    started_at = time.monotonic_ns()
    trace = Tracing(SimpleSpanProcessor(exporter)).begin("POST", PATH, {})
    trace.sweep("tiny", SweepStatistics(1e-9, 0.0, 0.0, 0.0, 0.0), queue_seconds=1e-9)
    trace.end(200)
    seconds = time.monotonic_ns() - started_at
    queue, inference, request = map(times, exporter.get_finished_spans())
    assert 0 <= request[1] - request[0] <= seconds
    assert queue[1] == inference[0]
    assert inference[1] <= request[1]
    assert queue[0] >= request[0] - 2
