"""Fuzz inference over gRPC: ``python -m tests.fuzz.grpc_infer [seconds] [first] [--minutes N]``.

Each example is one or some messages as tests/fuzz/grpc_messages.py draws them, at once or in one stream, to
a server on a port of its own. What is answered is what protobuf reads in the bytes, to the bit; all else is
an error of bounded length that blames the message; a stream goes on after it; nothing is held afterwards.
"""

import asyncio
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np
import onnx
from grpc import aio

from models.compiler import compile_onnx
from server.grpc.call import SERVICE
from server.grpc.messages import inference_pb2 as messages
from server.grpc.server import GrpcServer
from server.grpc.service import METHODS
from server.service import Service
from server.settings.settings import Settings
from tests.fuzz.grpc_messages import FIELDS, Sent, draw, packed
from tests.fuzz.http_infer import COPIES, copies_model
from tests.fuzz.pack import chosen_run, run_examples

Code = grpc.StatusCode
_LONGEST_ERROR = 600
_LIMIT_SECONDS = 60
_BLAMED = {Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.RESOURCE_EXHAUSTED}
_CHANGING = {"RepositoryModelLoad", "RepositoryModelUnload"}
_QUESTIONS = sorted(METHODS.keys() - _CHANGING - {"ModelInfer", "ModelStreamInfer"})


@dataclass(frozen=True)
class Answered:
    """The answer to a message, or the error; ``code``: None in a stream, which has but words."""

    found: bytes | None = None
    error: str = ""
    code: Code | None = None


class GrpcInferFuzzer:
    """A server with a model that copies its inputs, and a client; a context manager."""

    def __init__(self, folder: Path) -> None:
        onnx.save(copies_model(), folder / "copies.onnx")
        compile_onnx(folder / "copies.onnx", folder / "repository" / "copies")
        values = {"repository": folder / "repository", "budget": 16 << 20, "threads": 1}
        self._service = Service(Settings.model_validate(values))
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self._runner.run(self._start())
        return self

    async def _start(self) -> None:
        await self._service.__aenter__()
        await self._service.loaded()
        self._server = GrpcServer(self._service, None)
        port = await self._server.start("127.0.0.1", 0)
        self._channel = aio.insecure_channel(f"127.0.0.1:{port}")

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stop())
        self._runner.close()

    async def _stop(self) -> None:
        await self._channel.close()
        await self._server.end()
        await self._service.close()

    def run(self, number: int) -> bool:
        """Send the messages of one example; return whether one was answered."""
        return self._runner.run(self._run(random.Random(number)))

    async def _run(self, rng: random.Random) -> bool:
        sent = [draw(rng) for _ in range(rng.choice((1, 1, 1, 6)))]
        async with asyncio.timeout(_LIMIT_SECONDS):
            if rng.random() < 0.1:  # what asks for inference, to another method
                _check(Sent(b"", None), await self._ask(rng.choice(_QUESTIONS), sent[0].data))
            if rng.random() < 0.5:
                found = await self._stream([each.data for each in sent])
            else:
                calls = (self._ask("ModelInfer", each.data) for each in sent)
                found = await asyncio.gather(*calls)
            assert len(found) == len(sent)
            while self._holds_something():
                await asyncio.sleep(0)
        for each, answered in zip(sent, found, strict=True):
            _check(each, answered)
            if answered.found is not None:
                _check_answer(each, answered.found)
        return any(answered.found is not None for answered in found)

    def _holds_something(self) -> bool:
        return bool(self._service.request_memory.used_bytes or len(self._service.exchanges))

    async def _ask(self, method: str, data: bytes) -> Answered:
        call: Any = self._channel.unary_unary(f"/{SERVICE}/{method}")
        try:
            return Answered(await call(data))
        except aio.AioRpcError as exc:
            return Answered(error=exc.details() or "", code=exc.code())

    async def _stream(self, sent: Sequence[bytes]) -> list[Answered]:
        call: Any = self._channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        found = []
        async for data in call(iter(sent)):
            answer = messages.ModelStreamInferResponse.FromString(data)
            error = answer.error_message
            given = answer.infer_response.SerializeToString()
            found.append(Answered(None if error else given, error))
        return found


def _check(sent: Sent, answered: Answered) -> None:
    """Check that what is sound is answered, and what is not refused as a fault of the message."""
    if answered.found is not None:
        assert sent.is_sound is not False, f"answered: {sent.data!r}"
        return
    assert sent.is_sound is not True, f"refused: {answered.error} {sent.data!r}"
    assert answered.code is None or answered.code in _BLAMED, (answered, sent.data)
    assert 0 < len(answered.error) <= _LONGEST_ERROR
    assert answered.error.isprintable(), answered.error


def _check_answer(sent: Sent, found: bytes) -> None:
    """Check that the outputs that are asked for are the inputs."""
    asked = messages.ModelInferRequest.FromString(sent.data)
    answer = messages.ModelInferResponse.FromString(found)
    assert answer.id == asked.id
    names = [output.name for output in answer.outputs]
    assert names == ([output.name for output in asked.outputs] or list(COPIES.values()))
    raw = dict(zip(names, answer.raw_output_contents, strict=True))
    for index, tensor in enumerate(asked.inputs):
        if COPIES[tensor.name] in raw:
            given, got = _given(asked, index), raw[COPIES[tensor.name]]
            is_typed = not asked.raw_input_contents
            assert got == given or (is_typed and _same_floats(got, given)), sent.data


def _given(asked: messages.ModelInferRequest, index: int) -> bytes:
    """The values of an input as raw bytes, each boolean as 0 or 1."""
    tensor = asked.inputs[index]
    if not asked.raw_input_contents:
        return packed(tensor.name, getattr(tensor.contents, FIELDS[tensor.name]))
    data: bytes = asked.raw_input_contents[index]
    return np.frombuffer(data, np.uint8).astype(bool).tobytes() if tensor.name == "b" else data


def _same_floats(got: bytes, given: bytes) -> bool:
    """Whether these are the same floats: what passes through Python's has no NaN of many bits."""
    found, expected = (np.frombuffer(data, np.float32) for data in (got, given))
    return np.array_equal(found, expected, equal_nan=True)


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    with tempfile.TemporaryDirectory() as folder, GrpcInferFuzzer(Path(folder)) as fuzzer:
        return run_examples(fuzzer.run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
