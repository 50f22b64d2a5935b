"""Every call over gRPC, with a client of our own messages; wrong ones have the status that HTTP has."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio

from server.grpc.messages import inference_pb2 as messages
from server.grpc.service import METHODS
from tests.examples import over
from tests.server.grpc.stubs import Client, asking, calling
from tests.server.support import Packs, ServiceUnderTest, close, inputs_for

pytestmark = pytest.mark.asyncio(loop_scope="module")

Code = grpc.StatusCode
PAIR = inputs_for("pair")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(shared: ServiceUnderTest) -> AsyncIterator[Client]:
    async with calling(shared.inside) as found:
        yield found


async def test_the_server_and_its_models(client: Client, shared: ServiceUnderTest) -> None:
    assert (await client("ServerLive")).live
    assert (await client("ServerReady")).ready
    about = await client("ServerMetadata")
    assert about.name == "layerstream"
    assert "statistics" in about.extensions
    for name, version, ready in (("pair", "", True), ("pair", "1", True), ("pair", "2", False)):
        asked = messages.ModelReadyRequest(name=name, version=version)
        assert (await client("ModelReady", asked)).ready is ready
    assert not (await client("ModelReady", messages.ModelReadyRequest(name="nobody"))).ready


async def test_a_model_is_described_as_over_http(client: Client, shared: ServiceUnderTest) -> None:
    found = await client("ModelMetadata", messages.ModelMetadataRequest(name="pair"))
    told = (await shared.client.get("/v2/models/pair")).json()
    for kind in ("inputs", "outputs"):
        tensors = [
            {"name": each.name, "datatype": each.datatype, "shape": list(each.shape)}
            for each in getattr(found, kind)
        ]
        assert tensors == told[kind]
    config = (await client("ModelConfig", messages.ModelConfigRequest(name="pair"))).config
    told = (await shared.client.get("/v2/models/pair/config")).json()
    assert (config.name, config.backend) == ("pair", "layerstream")
    assert config.max_batch_size == told["max_batch_size"] == 1
    assert config.input[1].data_type == messages.TYPE_INT8
    assert list(config.input[0].dims) == told["input"][0]["dims"]
    assert config.version_policy.latest.num_versions == 1
    assert config.instance_group[0].kind == messages.ModelInstanceGroup.KIND_CPU


@pytest.mark.parametrize("raw", [True, False])
async def test_tensors_in_and_out(client: Client, packs: Packs, raw: bool) -> None:
    answer = await client("ModelInfer", asking("pair", PAIR, raw=raw, id="seven"))
    assert (answer.model_name, answer.model_version, answer.id) == ("pair", "1", "seven")
    expected = packs.expected("pair", PAIR)
    found = {
        about.name: np.frombuffer(data, expected[about.name].dtype).reshape(about.shape)
        for about, data in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }
    close(found, expected)


async def test_what_is_asked_for(client: Client, packs: Packs) -> None:
    asked = asking("pair", PAIR)
    asked.outputs.add(name="best")
    asked.outputs.add(name="scores").parameters["classification"].int64_param = 2
    answer = await client("ModelInfer", asked)
    assert [(each.name, each.datatype) for each in answer.outputs] == [
        ("best", "INT64"),
        ("scores", "BYTES"),
    ]
    best = packs.expected("pair", PAIR)["best"].item()
    length = int.from_bytes(answer.raw_output_contents[1][:4], "little")
    first = answer.raw_output_contents[1][4 : 4 + length].decode()
    assert first.endswith(f":{best}")


async def test_a_stream_goes_on_after_an_error(client: Client) -> None:
    found = await client.stream(
        [asking("pair", PAIR, id="a"), asking("nobody", PAIR), asking("pair", PAIR, id="b")]
    )
    assert [each.infer_response.id for each in found] == ["a", "", "b"]
    final = [each.infer_response.parameters["triton_final_response"].bool_param for each in found]
    assert all(final)  # a request has one answer, or one error
    assert "'nobody'" in found[1].error_message
    assert found[0].infer_response.raw_output_contents


async def test_a_failure_in_a_stream_has_the_id_of_its_request(client: Client) -> None:
    requests = [asking("nobody", PAIR, id="seven"), asking("pair", {}, id="eight")]
    failed = await client.stream(requests)
    assert [answer.infer_response.id for answer in failed] == ["seven", "eight"]
    assert all(answer.error_message for answer in failed)


async def test_empty_final_responses_are_none_where_each_request_has_one_answer(
    client: Client,
) -> None:
    request = asking("pair", PAIR)
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    (answer,) = await client.stream([request])
    assert answer.infer_response.raw_output_contents
    assert answer.infer_response.parameters["triton_final_response"].bool_param
    response = await client("ModelInfer", request)
    assert "triton_final_response" not in response.parameters  # that is of streams


async def test_statistics(client: Client) -> None:
    asked = messages.ModelStatisticsRequest(name="pair")
    (before,) = (await client("ModelStatistics", asked)).model_stats
    await client("ModelInfer", asking("pair", PAIR))
    await client.refused("ModelInfer", asking("pair", {}))
    (after,) = (await client("ModelStatistics", asked)).model_stats
    assert after.inference_count == before.inference_count + 1
    assert after.inference_stats.fail.count == before.inference_stats.fail.count + 1
    assert after.inference_stats.success.ns > before.inference_stats.success.ns
    assert len((await client("ModelStatistics")).model_stats) == 2


async def test_no_method_is_left_out() -> None:
    service = messages.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert set(service.methods_by_name) == set(METHODS)


def _wrong(**fields: Any) -> Any:
    return messages.ModelInferRequest(model_name="pair", **fields)


def _renamed() -> Any:
    asked = asking("pair", PAIR)
    asked.inputs[0].name = "nobody"
    return asked


def _reshaped() -> Any:
    asked = asking("pair", PAIR)
    asked.inputs[0].shape[1] = 1 << 62
    return asked


def _retyped() -> Any:
    asked = asking("pair", PAIR)
    asked.inputs[0].datatype = "FP16"
    return asked


def _short() -> Any:
    asked = asking("pair", PAIR)
    asked.raw_input_contents[1] = asked.raw_input_contents[1][:-1]
    return asked


def _one_raw() -> Any:
    asked = asking("pair", PAIR)
    del asked.raw_input_contents[1]
    return asked


def _twice() -> Any:
    asked = asking("pair", PAIR)
    asked.inputs[0].contents.fp32_contents.append(1)
    return asked


def _wide() -> Any:
    asked = asking("pair", PAIR, raw=False)
    asked.inputs[1].contents.int_contents[3] = 128
    return asked


def _few() -> Any:
    asked = asking("pair", PAIR, raw=False)
    del asked.inputs[1].contents.int_contents[3]
    return asked


def _other_contents() -> Any:
    asked = asking("pair", PAIR, raw=False)
    asked.inputs[1].contents.fp64_contents.append(3)
    return asked


def _output(**fields: Any) -> Any:
    asked = asking("pair", PAIR)
    asked.outputs.add(**fields)
    return asked


def _parameter(name: str, **value: Any) -> Any:
    asked = asking("pair", PAIR)
    asked.parameters[name].MergeFrom(messages.InferParameter(**value))
    return asked


def _shared() -> Any:
    asked = asking("pair", PAIR)
    asked.inputs[0].parameters["shared_memory_region"].string_param = "r"
    return asked


WRONG: list[tuple[Any, Code, str]] = [
    (asking("nobody", PAIR), Code.NOT_FOUND, "'nobody'"),
    (asking("", PAIR), Code.NOT_FOUND, "''"),
    (asking("n" * 300, PAIR), Code.NOT_FOUND, "not found"),
    (asking("..", PAIR), Code.NOT_FOUND, "'..'"),
    (asking("pair", PAIR, model_version="9"), Code.NOT_FOUND, "version '9'"),
    (_wrong(), Code.INVALID_ARGUMENT, "'x' is missing"),
    (_renamed(), Code.INVALID_ARGUMENT, "unknown input 'nobody'"),
    (_reshaped(), Code.INVALID_ARGUMENT, "the model takes [1, 64]"),
    (_retyped(), Code.INVALID_ARGUMENT, "datatype 'FP16'"),
    (_short(), Code.INVALID_ARGUMENT, "has 64 bytes"),
    (_one_raw(), Code.INVALID_ARGUMENT, "1 raw_input_contents for 2 inputs"),
    (_twice(), Code.INVALID_ARGUMENT, "both contents and raw_input_contents"),
    (_wide(), Code.INVALID_ARGUMENT, "INT8 cannot hold"),
    (_few(), Code.INVALID_ARGUMENT, "63 values in int_contents"),
    (_other_contents(), Code.INVALID_ARGUMENT, "fp64_contents; INT8 is in int_contents"),
    (_output(name="nobody"), Code.INVALID_ARGUMENT, "unknown output 'nobody'"),
    (_parameter("timeout", int64_param=-1), Code.INVALID_ARGUMENT, "parameters.timeout"),
    (_parameter("timeout", string_param="1"), Code.INVALID_ARGUMENT, "parameters.timeout"),
    (_parameter("priority", double_param=1.5), Code.INVALID_ARGUMENT, "parameters.priority"),
    (
        _parameter("triton_enable_empty_final_response", int64_param=1),
        Code.INVALID_ARGUMENT,
        "triton_enable_empty_final_response: not a boolean",
    ),
    (_shared(), Code.INVALID_ARGUMENT, "shared memory"),
    (b"\xff" * 40, Code.INVALID_ARGUMENT, "no ModelInferRequest"),
    (b"\x3a\x7f", Code.INVALID_ARGUMENT, "no ModelInferRequest"),
    (b"\x0a\x01\xff", Code.INVALID_ARGUMENT, "no ModelInferRequest"),
    (b"\x18\x01" * 5000, Code.INVALID_ARGUMENT, "over 4096 fields"),
]


@over("asked, code, words", WRONG)
async def test_what_is_wrong(
    client: Client, shared: ServiceUnderTest, asked: Any, code: Code, words: str
) -> None:
    error = await client.refused("ModelInfer", asked)
    assert error.code() is code, error
    assert words in (error.details() or "")
    assert shared.inside.request_memory.used_bytes == 0


@over(
    "method, asked, code",
    [
        ("ModelMetadata", messages.ModelMetadataRequest(name="nobody"), Code.NOT_FOUND),
        ("ModelConfig", messages.ModelConfigRequest(name="twin"), Code.NOT_FOUND),
        ("ModelStatistics", messages.ModelStatisticsRequest(name="nobody"), Code.NOT_FOUND),
        ("ModelStatistics", b"\xff", Code.INVALID_ARGUMENT),
        ("RepositoryModelLoad", messages.RepositoryModelLoadRequest(), Code.NOT_FOUND),
        ("TraceSetting", b"", Code.UNIMPLEMENTED),
        ("SystemSharedMemoryStatus", b"", Code.UNIMPLEMENTED),
    ],
)
async def test_other_calls_that_are_refused(
    client: Client, method: str, asked: Any, code: Code
) -> None:
    assert (await client.refused(method, asked)).code() is code
