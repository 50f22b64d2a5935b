"""The protocol's extensions about models: configuration, statistics, parameters, and what is not served."""

import json
from typing import Any

import pytest

from server.codec.datatypes import DATATYPES
from tests.examples import over
from tests.server.conftest import SettingsFactory
from tests.server.support import ServiceUnderTest, error, inputs_for, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

INDEX = "/v2/repository/index"
LOAD, UNLOAD = (f"/v2/repository/models/{{}}/{verb}" for verb in ("load", "unload"))


async def get(service: ServiceUnderTest, path: str) -> Any:
    answer = await service.client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_metadata_lists_what_is_true(shared: ServiceUnderTest) -> None:
    found = set((await get(shared, "/v2"))["extensions"])
    assert {"binary_tensor_data", "classification", "statistics", "model_configuration"} <= found
    assert not found & {"sequence", "trace", "logging", "system_shared_memory", "schedule_policy"}


async def test_a_configuration(shared: ServiceUnderTest) -> None:
    for path in ("/v2/models/pair/config", "/v2/models/pair/versions/1/config"):
        found = await get(shared, path)
        assert (found["name"], found["max_batch_size"]) == ("pair", 1)
        inputs = {item["name"]: (item["data_type"], item["dims"]) for item in found["input"]}
        assert inputs == {"x": ("TYPE_FP32", [64]), "steps": ("TYPE_INT8", [64])}
        outputs = {item["name"]: item["dims"] for item in found["output"]}
        assert outputs == {"scores": [16], "hidden": [256], "best": [1]}
        assert [(each["kind"], each["count"]) for each in found["instance_group"]] == [
            ("KIND_CPU", 1)
        ]
    assert {item["dims"][0] for item in (await get(shared, "/v2/models/tiny/config"))["input"]} == {
        3
    }
    for path in ("/v2/models/nobody/config", "/v2/models/pair/versions/2/config"):
        error(await shared.client.get(path), 404)


async def test_every_datatype_has_a_name_in_configurations() -> None:
    from server.protocol.metadata import data_type

    assert data_type("bytes") == "TYPE_STRING"
    assert {data_type(dtype) for dtype in DATATYPES.values() if dtype != "bytes"} == {
        f"TYPE_{name}" for name in DATATYPES if name != "BYTES"
    }


async def statistics(service: ServiceUnderTest, path: str = "/v2/models/pair/stats") -> Any:
    (found,) = (await get(service, path))["model_stats"]
    return found


async def test_statistics_count_and_sum(settings: SettingsFactory) -> None:
    async with serving(settings()) as service:
        await check_statistics(service)


async def check_statistics(service: ServiceUnderTest) -> None:
    before = await statistics(service)
    assert (before["inference_count"], before["last_inference"], before["batch_stats"]) == (
        0,
        0,
        [],
    )
    for _ in range(3):
        await service.infer("pair", inputs_for("pair"))
    await service.client.post("/v2/models/pair/infer", content=b"{")
    found = await statistics(service)
    assert (found["name"], found["version"]) == ("pair", "1")
    assert found["inference_count"] == found["execution_count"] == 3
    assert found["last_inference"] > 1_700_000_000_000
    figures = found["inference_stats"]
    assert {name: each["count"] for name, each in figures.items()} == {
        **dict.fromkeys(("success", "queue", "compute_input", "compute_infer"), 3),
        "compute_output": 3,
        "fail": 1,
        "cache_hit": 0,
        "cache_miss": 0,
    }
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    assert all(figures[name]["ns"] > 0 for name in (*parts[1:], "success", "fail"))
    assert sum(figures[name]["ns"] for name in parts) <= figures["success"]["ns"]
    (batch,) = found["batch_stats"]
    assert batch == {"batch_size": 1, **{name: figures[name] for name in parts[1:]}}
    (memory,) = found["memory_usage"]
    assert memory["byte_size"] == sum(service.inside.budget.held()["pair"].values())
    assert await statistics(service, "/v2/models/pair/versions/1/stats") == found
    names = [each["name"] for each in (await get(service, "/v2/models/stats"))["model_stats"]]
    assert names == ["pair", "tiny"]
    error(await service.client.get("/v2/models/nobody/stats"), 404)
    error(await service.client.get("/v2/models/pair/versions/2/stats"), 404)


async def states(service: ServiceUnderTest, body: Any = None) -> dict[str, str]:
    answer = await service.client.post(INDEX, json=body if body is not None else {})
    assert answer.status_code == 200
    return {model["name"]: model["state"] for model in answer.json()}


async def test_the_index_of_what_is_ready(shared: ServiceUnderTest) -> None:
    assert await states(shared) == {"pair": "READY", "tiny": "READY", "twin": "UNAVAILABLE"}
    assert await states(shared, {"ready": True, "more": 1}) == {"pair": "READY", "tiny": "READY"}
    assert (await shared.client.post(INDEX)).status_code == 200  # as tritonclient asks: no body
    error(await shared.client.post(INDEX, json={"ready": "yes"}), 400, "ready", "not a boolean")


async def load(service: ServiceUnderTest, parameters: Any, name: str = "tiny") -> Any:
    return await service.client.post(LOAD.format(name), json={"parameters": parameters})


async def test_a_configuration_of_a_load_may_say_what_is_so(shared: ServiceUnderTest) -> None:
    config = {"name": "tiny", "backend": "layerstream", "platform": "onnx_layerstream"}
    for parameters in ({}, {"config": json.dumps(config)}, {"config": "{}", "unknown": [1]}):
        assert (await load(shared, parameters)).status_code == 200


@over(
    "parameters, words",
    [
        ({"config": '{"max_batch_size": 16}'}, "'max_batch_size' cannot be changed"),
        ({"config": '{"name": "other"}'}, 'name cannot be changed from "tiny"'),
        ({"config": '{"backend": "onnxruntime"}'}, "backend cannot be changed"),
        ({"config": json.dumps({"a" * 300: 1})}, "cannot be changed"),
        ({"config": "{"}, "parameters.config: not a JSON object"),
        ({"config": "[" * 40_000}, "parameters.config: not a JSON object"),
        ({"config": "[]"}, "parameters.config: not a JSON object"),
        ({"config": {}}, "parameters.config: not a JSON object"),
        ({"file:1/model.onnx": "AAAA"}, "'file:1/model.onnx'"),
        ([], "parameters: not a JSON object"),
    ],
)
async def test_a_load_that_would_change_what_is_compiled(
    shared: ServiceUnderTest, parameters: Any, words: str
) -> None:
    answer = await load(shared, parameters, "tiny")
    assert len(error(answer, 400, words)) < 200
    assert (await states(shared))["tiny"] == "READY"


async def test_unload_takes_its_parameter(settings: SettingsFactory) -> None:
    async with serving(settings()) as service:
        await check_unload(service)


async def check_unload(service: ServiceUnderTest) -> None:
    unload = UNLOAD.format("tiny")
    wrongs: list[Any] = [{"parameters": {"unload_dependents": 1}}, {"parameters": 1}, []]
    for wrong in wrongs:
        error(await service.client.post(unload, json=wrong), 400)
    deep = b'{"parameters":{"unload_dependents":%b1%b}}' % (b"[" * 950, b"]" * 950)
    error(await service.client.post(unload, content=deep), 400, "not a boolean")
    error(await service.client.post(unload, content=b"\xff\xfe{\0"), 400, "not JSON")
    error(await service.client.post(unload, content=bytes(1 << 17)), 413)
    assert (await states(service))["tiny"] == "READY"
    answer = await service.client.post(unload, json={"parameters": {"unload_dependents": True}})
    assert answer.status_code == 200
    assert (await states(service))["tiny"] == "UNAVAILABLE"
    error(await service.client.get("/v2/models/tiny/stats"), 404, "unloaded")


async def test_what_is_not_served_is_said(shared: ServiceUnderTest) -> None:
    assert await get(shared, "/v2/trace/setting") == {"trace_level": ["OFF"]}
    assert await get(shared, "/v2/models/tiny/trace/setting") == {"trace_level": ["OFF"]}
    error(await shared.client.get("/v2/models/nobody/trace/setting"), 404)
    assert (await get(shared, "/v2/logging"))["log_verbose_level"] == 0
    for kind in ("system", "cuda"):
        root = f"/v2/{kind}sharedmemory"
        assert await get(shared, f"{root}/status") == []
        assert await get(shared, f"{root}/region/r/status") == []
        for place in ("", "/region/r"):
            assert (await shared.client.post(f"{root}{place}/unregister")).status_code == 200
        error(await shared.client.post(f"{root}/region/r/register", json={}), 501, "shared memory")
    for path in ("/v2/trace/setting", "/v2/models/tiny/trace/setting", "/v2/logging"):
        error(await shared.client.post(path, json={"trace_level": ["TIMESTAMPS"]}), 405, path)
