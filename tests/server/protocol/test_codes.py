"""Each class of errors over HTTP and gRPC: one code, and all that follows from it."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from pipeline.planning.plan import PlanError
from server.errors import ServiceError
from server.faults import Code
from server.grpc.details import KEY
from server.grpc.messages import inference_pb2 as messages
from tests.examples import over
from tests.server.errors_table import ERRORS, SLIPS
from tests.server.grpc.stubs import Client, calling, reason_of_details
from tests.server.support import ServiceUnderTest, error, inputs_for

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(shared: ServiceUnderTest) -> AsyncIterator[Client]:
    async with calling(shared.inside) as grpc_client:
        yield grpc_client


@pytest.fixture
def failing(shared: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """Return a list: what is in it is raised where a model is described."""
    errors: list[Exception] = []

    async def described(name: str, version: str | None = None) -> Any:
        raise errors[0]

    monkeypatch.setattr(shared.inside.repository, "described", described)
    return errors


@over("code, exc", [*ERRORS, *((Code.INTERNAL, exc) for exc in SLIPS)])
async def test_an_error_over_http_and_grpc(
    shared: ServiceUnderTest, client: Client, failing: list[Exception], code: Code, exc: Exception
) -> None:
    failing[:] = [exc]
    answer = await shared.client.get("/v2/models/tiny")
    error(answer, code.status)
    assert answer.json()["code"] == code
    if code is Code.DISCONNECTED:  # nobody is there to read a status
        return
    refused = await client.refused("ModelMetadata", messages.ModelMetadataRequest(name="tiny"))
    assert refused.code() is grpc.StatusCode[code.grpc]
    assert refused.details() == answer.json()["error"]
    (details,) = [value for key, value in refused.trailing_metadata() or () if key == KEY]
    assert isinstance(details, bytes)
    assert reason_of_details(details) == code.upper()


@over("exc", SLIPS)
async def test_the_traceback_of_a_fault_is_in_the_log(
    shared: ServiceUnderTest,
    failing: list[Exception],
    caplog: pytest.LogCaptureFixture,
    exc: Exception,
) -> None:
    failing[:] = [exc]
    caplog.clear()
    answer = await shared.client.get("/v2/models/tiny")
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line.exc_info
    assert line.exc_info[1] is exc
    is_text = isinstance(exc, ServiceError | PlanError)
    assert (answer.json()["error"] == "why") == is_text  # else the text is not for clients


@over("code, exc", ERRORS)
async def test_what_the_table_has_is_no_traceback(
    shared: ServiceUnderTest,
    failing: list[Exception],
    caplog: pytest.LogCaptureFixture,
    code: Code,
    exc: Exception,
) -> None:
    failing[:] = [exc]
    caplog.clear()
    await shared.client.get("/v2/models/tiny")
    lines = [record for record in caplog.records if record.name == "server.protocol.errors"]
    assert [line.levelno for line in lines] == ([] if code.level is None else [code.level])
    assert [bool(line.exc_info) for line in lines] == [code is Code.INTERNAL for _ in lines]


async def test_a_fault_counts_as_internal(
    shared: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_: object) -> None:
        raise KeyError("a slip")

    name, labels = "layerstream_requests_total", {"model": "tiny", "outcome": "internal"}
    before = await shared.metric(name, **labels) or 0.0
    monkeypatch.setattr(shared.worker("tiny"), "answer", answer)
    error(await shared.infer("tiny", inputs_for("tiny")), 500)
    assert await shared.metric(name, **labels) == before + 1


async def test_a_failure_in_a_stream_has_its_code(client: Client) -> None:
    (answer,) = await client.stream([messages.ModelInferRequest(model_name="nobody")])
    assert answer.error_message
    assert answer.infer_response.parameters["code"].string_param == "not_found"
