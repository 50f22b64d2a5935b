"""Fuzz infer over HTTP: ``python -m tests.fuzz.http_infer [seconds] [first] [--minutes N]``.

Each example is a body as tests/fuzz/infer.py draws it, sent to a service with headers that may lie: lengths
that overflow, codings that are none, chunks that end early. What the plain rules take is answered with what
came in, to the bit; all else with an error of bounded length; and nothing is held afterwards.
"""

import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnx
from onnx import TensorProto, helper
from tritonclient.http import InferResult

from models.compiler import compile_onnx
from models.packs.records.ports import Port
from server.app import create_app
from server.codec.framing import CODINGS
from server.service import Service
from server.settings.settings import Settings
from tests.fuzz.infer import encoded
from tests.fuzz.pack import chosen_run, run_examples
from tests.server.clients.messages import plain
from tests.server.codec.infer_cases import chunks
from tests.server.codec.infer_oracle import Meaning, Refused, meaning
from tests.server.codec.mixed_cases import draw_sent

COPIES = {"x": "y", "b": "z", "s": "w"}
_LENGTHS = [b"-1", b"+1", b"", b"0x1", b"9" * 18, b"9" * 40, b"1e3", b"\xff", b" 7"]
_CODINGS = [b"br", b"gzip, gzip", b"x" * 300, b"\0", b"identity, gzip"]
_REFUSED, _LATE = 503, 504
_LONGEST_ERROR = 600


def copies_model() -> onnx.ModelProto:
    kinds = {"x": (TensorProto.FLOAT, (2, 2)), "b": (TensorProto.BOOL, (3,))}
    kinds["s"] = (TensorProto.STRING, (2,))
    graph = helper.make_graph(
        [helper.make_node("Identity", [name], [copy]) for name, copy in COPIES.items()],
        "copies",
        [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()],
        [helper.make_tensor_value_info(COPIES[name], *kind) for name, kind in kinds.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


async def _entered(service: Service) -> None:
    await service.__aenter__()
    await service.loaded()


class HttpInferFuzzer:
    """A service with a model that copies its inputs; a context manager."""

    def __init__(self, folder: Path) -> None:
        onnx.save(copies_model(), folder / "copies.onnx")
        compile_onnx(folder / "copies.onnx", folder / "repository" / "copies")
        values = {"repository": folder / "repository", "budget": 16 << 20, "threads": 1}
        self._app = create_app(Settings.model_validate(values))
        self._runner = asyncio.Runner()
        self._ports: tuple[Port, ...] = ()
        self._outputs: tuple[Port, ...] = ()

    def __enter__(self) -> Self:
        service = self._app.state.service
        self._runner.run(_entered(service))
        manifest = service.repository.models.find("copies").serving().prepared.pack.manifest
        self._ports, self._outputs = manifest.inputs, manifest.outputs
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._app.state.service.close())
        self._runner.close()

    def run(self, number: int) -> bool:
        """Send one request; return whether it was answered."""
        rng = random.Random(number)
        body, json_bytes = draw_sent(rng, self._ports)
        coding = rng.choice(("identity", "identity", *CODINGS))
        headers: list[tuple[bytes, bytes]] = []
        if json_bytes is not None:
            headers.append((b"inference-header-content-length", b"%d" % json_bytes))
        if coding != "identity":
            headers.append((b"content-encoding", coding.encode()))
        expected = self._meaning(body, json_bytes)
        sent = encoded(body, coding)
        if rng.random() < 0.1:
            expected, sent = None, self._damaged(rng, sent, headers)
        status, answer, length = self._runner.run(self._ask(list(chunks(rng, sent)), headers))
        service = self._app.state.service
        assert service.request_memory.used_bytes == 0
        assert not len(service.exchanges)
        if status != 200:
            self._check_error(status, answer, expected)
            return False
        assert expected is not None, f"answered: {headers} {sent!r}"
        self._check(expected, answer, length)
        return True

    def _meaning(self, body: bytes, json_bytes: int | None) -> Meaning | None:
        try:
            return meaning(body, self._ports, self._outputs, json_bytes)
        except Refused:
            return None

    def _damaged(
        self, rng: random.Random, sent: bytes, headers: list[tuple[bytes, bytes]]
    ) -> bytes:
        """Add a header that no request has, or cut off what is compressed."""
        if rng.random() < 0.5:
            headers.append((b"inference-header-content-length", rng.choice(_LENGTHS)))
            headers.append((b"inference-header-content-length", b"3"))
        else:
            headers.append((b"content-encoding", rng.choice(_CODINGS)))
        return sent

    async def _ask(
        self, parts: list[bytes], headers: list[tuple[bytes, bytes]]
    ) -> tuple[int, bytes, str | None]:
        messages = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
        messages.append({"type": "http.request", "body": b"", "more_body": False})
        answer: list[Any] = []

        async def receive() -> Any:
            if not messages:
                await asyncio.Event().wait()  # the client stays until it has its answer
            return messages.pop(0)

        async def send(message: Any) -> None:
            answer.append(message)

        path = "/v2/models/copies/infer"
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("service", 80),
        }
        await self._app(scope, receive, send)
        length = dict(answer[0]["headers"]).get(b"inference-header-content-length")
        body = b"".join(message.get("body", b"") for message in answer[1:])
        return answer[0]["status"], body, length.decode() if length else None

    def _check_error(self, status: int, answer: bytes, expected: Meaning | None) -> None:
        message = json.loads(answer)["error"]
        assert 0 < len(message) <= _LONGEST_ERROR
        if expected is None:
            assert status in {400, 413, 415}, (status, message)
            return
        asked = {name for name, is_binary, n_classes in expected.outputs if not is_binary}
        x = expected.inputs["x"]
        odd = "y" in asked and not np.isfinite(x).all()
        classes = any(n_classes for _, _, n_classes in expected.outputs)
        hurried = expected.timeout_seconds is not None
        allowed = {_REFUSED: hurried, _LATE: hurried, 400: odd or classes}
        assert allowed.get(status, False), (status, message)

    def _check(self, expected: Meaning, answer: bytes, length: str | None) -> None:
        found = InferResult.from_response_body(answer, header_length=length)
        names = [output["name"] for output in found.get_response()["outputs"]]
        assert names == [name for name, _, _ in expected.outputs]
        assert found.get_response().get("id") == expected.id
        sources = {copy: name for name, copy in COPIES.items()}
        for name, is_binary, n_classes in expected.outputs:
            has_bytes = "binary_data_size" in found.get_output(name).get("parameters", {})
            assert has_bytes == is_binary
            if not n_classes:
                assert plain(found.as_numpy(name)) == plain(expected.inputs[sources[name]])


def main(arguments: list[str]) -> int:
    seconds, first = chosen_run(arguments)
    with tempfile.TemporaryDirectory() as folder, HttpInferFuzzer(Path(folder)) as fuzzer:
        return run_examples(fuzzer.run, seconds, first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
