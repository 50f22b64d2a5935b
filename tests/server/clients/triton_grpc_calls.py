"""Run by an interpreter that has ``tritonclient[grpc]``: its calls, against the port that is given.

Says "sync" and "aio" when all of either went as they should; imports nothing of this project.
"""

import asyncio
import inspect
import json
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as sync
from tritonclient.grpc import aio
from tritonclient.utils import InferenceServerException

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 64)
STEPS = np.arange(64, dtype=np.int8).reshape(1, 64)


def inputs() -> list[Any]:
    found = [sync.InferInput("x", [1, 64], "FP32"), sync.InferInput("steps", [1, 64], "INT8")]
    found[0].set_data_from_numpy(X)
    found[1].set_data_from_numpy(STEPS)
    return found


async def check(client: Any) -> None:
    async def call(name: str, *arguments: Any, **options: Any) -> Any:
        found = getattr(client, name)(*arguments, **options)
        return await found if inspect.isawaitable(found) else found

    async def refused(status: str, name: str, *arguments: Any, **options: Any) -> None:
        try:
            await call(name, *arguments, **options)
        except InferenceServerException as exc:
            found = exc.status()
        else:
            found = "answered"
        assert status in str(found), (name, found)

    assert await call("is_server_live")
    assert await call("is_server_ready")
    assert await call("is_model_ready", "pair", "1")
    assert not await call("is_model_ready", "nobody")
    assert (await call("get_server_metadata", as_json=True))["name"] == "layerstream"
    assert len((await call("get_model_metadata", "pair")).inputs) == 2
    assert (await call("get_model_config", "pair")).config.max_batch_size == 1
    assert len((await call("get_model_repository_index")).models) == 3
    await call("unload_model", "tiny", unload_dependents=True)
    assert not await call("is_model_ready", "tiny")
    await call("load_model", "tiny", config=json.dumps({"name": "tiny"}))
    assert await call("is_model_ready", "tiny")
    found = await call("infer", "pair", inputs(), request_id="seven", client_timeout=30.0)
    assert found.get_response().id == "seven"
    scores = found.as_numpy("scores")
    assert scores.shape == (1, 16)
    assert found.as_numpy("best").item() == scores.argmax()
    best = sync.InferRequestedOutput("scores", class_count=3)
    found = await call("infer", "pair", inputs(), outputs=[best], priority=1, timeout=30_000_000)
    assert found.as_numpy("scores").shape == (1, 3)
    assert found.as_numpy("scores")[0, 0].decode().endswith(f":{scores.argmax()}")
    statistics = await call("get_inference_statistics", "pair", as_json=True)
    assert int(statistics["model_stats"][0]["inference_count"]) >= 2
    await refused("NOT_FOUND", "infer", "nobody", inputs())
    await refused("INVALID_ARGUMENT", "infer", "pair", inputs()[:1])
    await refused("INVALID_ARGUMENT", "load_model", "tiny", config='{"max_batch_size": 8}')
    await refused("NOT_FOUND", "unload_model", "nobody")
    await refused("UNIMPLEMENTED", "get_trace_settings")
    await refused("UNIMPLEMENTED", "get_system_shared_memory_status")


def stream(client: Any) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for name in ("pair", "nobody", "pair"):
        options = {"request_id": name, "enable_empty_final_response": True}
        client.async_stream_infer(name, inputs(), **options)
    found = [answers.get(timeout=30) for _ in range(3)]
    client.stop_stream()
    assert [error is None for _, error in found] == [True, False, True]
    assert found[2][0].as_numpy("scores").shape == (1, 16)
    assert found[2][0].get_response().parameters["triton_final_response"].bool_param
    assert answers.empty()


async def run(place: str) -> None:
    with sync.InferenceServerClient(place) as client:
        await check(client)
        stream(client)
    print("sync")
    async with aio.InferenceServerClient(place) as other:
        await check(other)
    print("aio")


asyncio.run(run(f"127.0.0.1:{sys.argv[1]}"))
