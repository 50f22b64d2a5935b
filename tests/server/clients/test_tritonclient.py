"""Every public call of the unmodified ``tritonclient``, sync and aio, against a live server."""

import asyncio
import inspect
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import tritonclient.http as sync
from tritonclient.http import aio
from tritonclient.utils import InferenceServerException

from tests.server.clients.messages import output, tensor
from tests.server.support import (
    LIMIT_SECONDS,
    REQUEST_MEMORY,
    Packs,
    close,
    inputs_for,
    serving_port,
)

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

PAIR = inputs_for("pair")
#: A trace or log level, a region: what is asked for and refused.
REFUSED = "501"


@pytest.fixture(scope="module")
def port(packs: Packs) -> Iterator[int]:
    """A server with "tiny" and "pair" in a process of its own."""
    models = ("--model", "tiny", "--model", "pair")
    flags = (*models, "--port", "0", "--budget", str(REQUEST_MEMORY + (64 << 20)))
    code = "from cli.process import main; main()"
    command = [sys.executable, "-c", code, "serve", "--repository", str(packs.repository), *flags]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stderr=subprocess.PIPE, cwd=root) as server:
        try:
            yield serving_port(server)
        finally:
            server.terminate()
            server.communicate(timeout=LIMIT_SECONDS)
    assert server.returncode in {0, -15}


class Client:
    """Either of the two clients; what one awaits the other waits for."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, call: str, *arguments: Any, **options: Any) -> Any:
        found = getattr(self.inner, call)(*arguments, **options)
        return await found if inspect.isawaitable(found) else found


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[sync, aio])
async def client(request: pytest.FixtureRequest, port: int) -> AsyncIterator[Client]:
    found = Client(request.param.InferenceServerClient(f"127.0.0.1:{port}"))
    yield found
    await found("close")


Check = Callable[[Any], object]


def nothing(found: Any) -> bool:
    return found is None


#: Calls that succeed: their arguments, and what holds of the result.
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any], Check]] = [
    ("is_server_live", (), {}, bool),
    ("is_server_ready", (), {}, bool),
    ("is_model_ready", ("tiny",), {}, bool),
    ("is_model_ready", ("tiny", "1"), {"query_params": {"unknown": "1"}}, bool),
    ("is_model_ready", ("tiny", "2"), {}, lambda found: found is False),
    ("is_model_ready", ("nobody",), {}, lambda found: found is False),
    ("get_server_metadata", (), {}, lambda found: found["name"] == "layerstream"),
    ("get_model_metadata", ("pair",), {}, lambda found: found["versions"] == ["1"]),
    ("get_model_metadata", ("pair", "1"), {}, lambda found: len(found["inputs"]) == 2),
    ("get_model_config", ("pair",), {}, lambda found: found["max_batch_size"] == 1),
    ("get_model_config", ("pair", "1"), {}, lambda found: found["backend"] == "layerstream"),
    ("get_model_repository_index", (), {}, lambda found: len(found) == 3),
    ("load_model", ("tiny",), {}, nothing),
    ("load_model", ("tiny",), {"config": json.dumps({"name": "tiny"})}, nothing),
    ("unload_model", ("tiny",), {"unload_dependents": True}, nothing),
    ("load_model", ("tiny",), {}, nothing),
    ("get_inference_statistics", (), {}, lambda found: len(found["model_stats"]) == 2),
    ("get_inference_statistics", ("pair",), {}, lambda found: len(found["model_stats"]) == 1),
    ("get_inference_statistics", ("pair", "1"), {}, lambda found: found["model_stats"]),
    ("get_trace_settings", (), {}, lambda found: found["trace_level"] == ["OFF"]),
    ("get_trace_settings", ("tiny",), {}, lambda found: found["trace_level"] == ["OFF"]),
    ("get_log_settings", (), {}, lambda found: found["log_info"] is True),
    ("get_system_shared_memory_status", (), {}, lambda found: found == []),
    ("get_system_shared_memory_status", ("r",), {}, lambda found: found == []),
    ("get_cuda_shared_memory_status", (), {}, lambda found: found == []),
    ("get_cuda_shared_memory_status", ("r",), {}, lambda found: found == []),
    ("unregister_system_shared_memory", (), {}, nothing),
    ("unregister_system_shared_memory", ("r",), {}, nothing),
    ("unregister_cuda_shared_memory", (), {}, nothing),
    ("unregister_cuda_shared_memory", ("r",), {}, nothing),
]

#: Calls that are refused: their arguments, the status, and words of the error.
REFUSALS: list[tuple[str, tuple[Any, ...], dict[str, Any], str, str]] = [
    ("get_model_metadata", ("nobody",), {}, "404", "'nobody'"),
    ("get_model_metadata", ("tiny", "9"), {}, "404", "version '9'"),
    ("get_model_config", ("a/b",), {}, "404", ""),
    ("get_model_config", ("..",), {}, "404", ""),
    ("get_inference_statistics", ("n" * 300,), {}, "404", "not found"),
    ("get_inference_statistics", ("twin",), {}, "404", "'twin'"),
    ("load_model", ("nobody",), {}, "404", "'nobody'"),
    ("load_model", ("tiny",), {"config": '{"max_batch_size": 8}'}, "400", "max_batch_size"),
    ("load_model", ("tiny",), {"config": "{}", "files": {"file:1/m": b"x"}}, "400", "file:1/m"),
    ("unload_model", ("nobody",), {}, "404", "'nobody'"),
    ("update_trace_settings", (), {"settings": {"trace_level": ["OFF"]}}, "405", "trace/setting"),
    ("update_trace_settings", ("tiny", {}), {}, "405", "trace/setting"),
    ("update_log_settings", ({"log_info": False},), {}, "405", "logging"),
    ("register_system_shared_memory", ("r", "/k", 64), {}, REFUSED, "shared memory"),
    ("register_cuda_shared_memory", ("r", b"aGFuZGxl", 0, 64), {}, REFUSED, "shared memory"),
]

#: What does not ask the server, and what the tests below call.
OTHERS = {"close", "plugin", "register_plugin", "unregister_plugin"}
OTHERS |= {"generate_request_body", "parse_response_body", "infer", "async_infer"}


async def test_no_public_call_is_left_out(client: Client) -> None:
    public = {name for name in dir(client.inner) if not name.startswith("_")}
    assert public <= {call[0] for call in (*CALLS, *REFUSALS)} | OTHERS


@pytest.mark.parametrize(
    ("call", "arguments", "options", "check"), CALLS, ids=[call[0] for call in CALLS]
)
async def test_calls(
    client: Client, call: str, arguments: tuple[Any, ...], options: dict[str, Any], check: Check
) -> None:
    assert check(await client(call, *arguments, **options))


@pytest.mark.parametrize(
    ("call", "arguments", "options", "status", "words"),
    REFUSALS,
    ids=[call[0] for call in REFUSALS],
)
async def test_refusals(
    client: Client,
    call: str,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    status: str,
    words: str,
) -> None:
    with pytest.raises(InferenceServerException) as info:
        await client(call, *arguments, **options)
    assert info.value.status() == status
    assert words in info.value.message()
    assert len(info.value.message()) < 600
    assert await client("is_server_ready")


def arrays(found: Any, names: Any) -> dict[str, Any]:
    return {name: found.as_numpy(name) for name in names}


@pytest.mark.parametrize("coding", [None, "gzip", "deflate"])
@pytest.mark.parametrize("is_binary", [True, False])
@pytest.mark.parametrize("is_binary_out", [None, True, False])
async def test_infer(
    client: Client, packs: Packs, coding: str | None, is_binary: bool, is_binary_out: bool | None
) -> None:
    expected = packs.expected("pair", PAIR)
    wanted = None
    if is_binary_out is not None:
        wanted = [output("hidden", is_binary_out), output("best"), output("scores", is_binary_out)]
    found = await client(
        "infer",
        "pair",
        [tensor(name, array, is_binary) for name, array in PAIR.items()],
        model_version="1" if is_binary else "",
        outputs=wanted,
        request_id="7",
        sequence_id=3,
        sequence_start=True,
        priority=1,
        timeout=20_000_000,
        query_params={"unknown": ["a", "b"]},
        request_compression_algorithm=coding,
        response_compression_algorithm=coding,
        parameters={"mine": 1},
    )
    close(arrays(found, expected), expected)
    assert found.get_response()["id"] == "7"
    assert found.get_output("best")["datatype"] == "INT64"


async def test_infer_classes(client: Client, packs: Packs) -> None:
    found = await client(
        "infer",
        "tiny",
        [tensor("image", inputs_for("tiny")["image"])],
        outputs=[output("logits", classes=2)],
    )
    (scores,) = packs.expected("tiny", inputs_for("tiny")).values()
    best = [line.decode().split(":")[1:] for line in found.as_numpy("logits")[0]]
    assert best == [[str(i), f"class {i}"] for i in np.argsort(-scores[0])[:2]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [64]}, "shape [64]"),
        ({"kind": "INT8"}, "datatype 'INT8'"),
        ({"name": "z" * 400}, "unknown input"),
        ({"region": "r"}, "shared memory is not served"),
    ],
)
async def test_bad_tensors(client: Client, change: dict[str, Any], words: str) -> None:
    inputs = [tensor(name, array) for name, array in PAIR.items()]
    x = inputs[0]
    if "shape" in change:
        x.set_shape(change["shape"])
    if "region" in change:
        x.set_shared_memory("r", 256)
    x._name = change.get("name", x._name)
    x._datatype = change.get("kind", x._datatype)
    with pytest.raises(InferenceServerException) as info:
        await client("infer", "pair", inputs)
    assert info.value.status() == "400"
    assert words in info.value.message()
    assert len(info.value.message()) < 300


async def test_many_at_once(port: int, packs: Packs) -> None:
    """A hundred requests over ten connections: each gets its own answer."""
    many = [inputs_for("pair", seed) for seed in range(100)]
    async with aio.InferenceServerClient(f"127.0.0.1:{port}", conn_limit=10) as inner:
        found = await asyncio.gather(
            *(
                inner.infer("pair", [tensor(*item) for item in inputs.items()], request_id=str(i))
                for i, inputs in enumerate(many)
            )
        )
    for number, (inputs, result) in enumerate(zip(many, found, strict=True)):
        expected = packs.expected("pair", inputs)
        close(arrays(result, expected), expected)
        assert result.get_response()["id"] == str(number)


async def test_async_infer(port: int, packs: Packs) -> None:
    with sync.InferenceServerClient(f"127.0.0.1:{port}", concurrency=4) as inner:
        inputs = [tensor(name, array) for name, array in PAIR.items()]
        asked = [inner.async_infer("pair", inputs) for _ in range(8)]
        expected = packs.expected("pair", PAIR)
        for each in asked:
            close(arrays(each.get_result(timeout=LIMIT_SECONDS), expected), expected)
