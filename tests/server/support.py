"""What the tests of the service share: a service in this process, gates and faults."""

import asyncio
import contextlib
import functools
import io
import json
import re
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np
import onnxruntime
from fastapi import FastAPI
from numpy.typing import NDArray
from PIL import Image

from loader.readers.fakes import MemoryReader
from loader.readers.interface import Reader
from models.images.preprocess import Preprocess
from models.packs.pack import open_pack
from models.runtime.sessions import open_resident
from pipeline.devices.base import Kernel, Launch
from pipeline.devices.cpu import CpuDevice
from pipeline.devices.device_memory import Memory
from pipeline.planning.smallest import smallest_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from server.app import create_app
from server.codec.datatypes import datatype
from server.faults import Code
from server.repository.worker import Worker
from server.service import Listener, Service
from server.settings.settings import Settings
from tests.server.asgi import Asgi, extended

#: Nothing here takes this long; a test that waits for it has failed.
LIMIT_SECONDS = 30.0
# What `serve` has said before in its log.
_LOGGED = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d([+-]\d{4})? ")
_ADDRESS = re.compile(rb"http://[^ \"]+:(\d+)")

Tensors = Mapping[str, NDArray[Any]]
#: Values of metrics by name and labels.
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]

#: Of the budget, for requests in flight.
REQUEST_MEMORY = 48 << 20

LABELS = tuple(f"class {number}" for number in range(10))
PREPROCESS = Preprocess(size=(16, 16), scale=1 / 255)

#: Statuses of the command: it cannot do what it should; something failed while it did.
BAD, FAILED = 2, 1


async def until(holds: Callable[[], object]) -> None:
    """Let others go on until it holds: threads and the kernel among them, which signal nothing."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def settled() -> None:
    """Let all tasks go as far as they can without threads."""
    for _ in range(30):
        await asyncio.sleep(0)


def serving_port(server: subprocess.Popen[bytes]) -> int:
    """Return the port that a server's log names; AssertionError with what it said if none comes in time."""
    assert server.stderr is not None
    said = b""
    giving_up = threading.Timer(LIMIT_SECONDS, server.kill)
    giving_up.start()
    try:
        for line in server.stderr:
            if found := _ADDRESS.search(line):
                return int(found[1])
            said += line
    finally:
        giving_up.cancel()
    raise AssertionError(f"no address in what the server said: {said.decode()}")


@functools.cache
def _source(path: str) -> onnxruntime.InferenceSession:
    """A session is opened once for all tests that compare with it."""
    return open_resident(path)


@functools.cache
def _least(folder: Path) -> Mapping[str, int]:
    """Return its least memory, which nearly every service of the tests needs."""
    return smallest_plan(Program.as_compiled(open_pack(folder)), ARCHITECTURES["2s"]).memory


@dataclass(frozen=True)
class Packs:
    """A repository with "tiny", "twin" (images in, ten labels out) and "pair" (two in, three out)."""

    repository: Path
    sources: Mapping[str, Path]

    def expected(self, name: str, inputs: Tensors) -> dict[str, NDArray[Any]]:
        """What ONNX Runtime makes of ``inputs`` with the file that was compiled."""
        session = _source(str(self.sources[name]))
        outputs = [port.name for port in session.get_outputs()]
        return dict(zip(outputs, session.run(None, dict(inputs)), strict=True))

    def smallest(self, name: str) -> int:
        """Bytes that ``name`` needs at least."""
        return sum(self.least(name).values())

    def least(self, name: str) -> dict[str, int]:
        """The same, by kind."""
        return dict(_least(self.repository / name))

    def weights(self, name: str) -> int:
        return open_pack(self.repository / name).manifest.weight_bytes


@dataclass(frozen=True)
class ServiceUnderTest:
    """A started application and a client of it."""

    app: FastAPI
    client: httpx.AsyncClient
    #: What the service consists of.
    inside: Service

    @classmethod
    def of(cls, app: FastAPI) -> Self:
        # Exceptions that reach the server become answers, as they do behind a real one.
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        client = httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8080", timeout=None
        )
        return cls(app, client, app.state.service)

    @property
    def asgi(self) -> Asgi:
        """What answers requests, for clients that speak ASGI."""
        return self.app

    async def infer(self, name: str, inputs: Tensors, **fields: Any) -> httpx.Response:
        return await self.client.post(f"/v2/models/{name}/infer", json=request(inputs, **fields))

    def worker(self, name: str) -> Worker:
        worker = self.inside.repository.models.find(name).serving().worker
        assert worker is not None
        return worker

    async def metrics(self, name: str = "") -> Samples:
        """Those that a scrape shows, or those called ``name``: to read all takes as long as a request."""
        lines = (await self.client.get("/metrics")).text.splitlines(keepends=True)
        return samples("".join(line for line in lines if name in line))

    async def metric(self, name: str, **labels: str) -> float | None:
        """The value that a scrape shows, None where it shows none."""
        return (await self.metrics(name)).get((name, frozenset(labels.items())))


def samples(text: str) -> Samples:
    """Every sample of an exposition by name and labels."""
    from prometheus_client.parser import text_string_to_metric_families

    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in text_string_to_metric_families(text)
        for sample in metric.samples
    }


@contextlib.asynccontextmanager
async def serving(
    settings: Settings, listeners: Sequence[Callable[[Service], Listener]] = ()
) -> AsyncIterator[ServiceUnderTest]:
    """Enter the service as `serve` does, give it a client, leave it again."""
    inside = Service(settings, owns_process=True, listeners=listeners)
    service = ServiceUnderTest.of(create_app(inside))
    async with inside, service.client:
        await inside.loaded()
        yield service


def tensor(name: str, array: NDArray[Any], nested: bool = False) -> dict[str, Any]:
    """One entry of "inputs"."""
    data = array.tolist() if nested else array.ravel().tolist()
    kind = datatype(array.dtype.name)
    return {"name": name, "shape": list(array.shape), "datatype": kind, "data": data}


def request(inputs: Tensors, nested: bool = False, **fields: Any) -> dict[str, Any]:
    """The body of an infer request."""
    return {"inputs": [tensor(name, array, nested) for name, array in inputs.items()], **fields}


def arrays(response: httpx.Response) -> dict[str, NDArray[Any]]:
    """The outputs of an infer response."""
    assert response.status_code == 200, response.text
    kinds = {"FP32": "float32", "INT64": "int64"}
    return {
        output["name"]: np.array(output["data"], kinds[output["datatype"]]).reshape(output["shape"])
        for output in response.json()["outputs"]
    }


def close(got: Tensors, expected: Tensors) -> None:
    """Check that the outputs are the same but for rounding."""
    assert list(got) == list(expected)
    for name, array in expected.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        scale = max(1.0, float(np.abs(array).max()))
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5 * scale)


def error(response: httpx.Response, status: int, *words: str) -> str:
    """Check that ``response`` is an error in the protocol's form that names ``words``."""
    assert response.status_code == status, response.text
    document = response.json()
    assert set(document) == {"error", "code"}
    assert status in {code.status for code in Code if code == document["code"]}
    message = document["error"]
    assert isinstance(message, str)
    assert message
    assert "Traceback" not in message
    assert 'File "' not in message
    for word in words:
        assert word in message
    return message


def inputs_for(name: str, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Inputs of one of the packs."""
    generator = np.random.default_rng(seed)
    if name == "pair":
        return {
            "x": generator.standard_normal((1, 64)).astype(np.float32),
            "steps": generator.integers(-128, 128, (1, 64)).astype(np.int8),
        }
    return {"image": generator.standard_normal((1, 3, 16, 16)).astype(np.float32)}


def picture(width: int = 40, height: int = 30, kind: str = "PNG", seed: int = 0) -> bytes:
    """An image file."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


class Gate:
    """Holds up callers of ``hold`` until ``open``."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._opened = threading.Event()

    def hold(self) -> None:
        self._reached.set()
        assert self._opened.wait(LIMIT_SECONDS)

    def open(self) -> None:
        self._opened.set()

    @property
    def is_reached(self) -> bool:
        return self._reached.is_set()

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, LIMIT_SECONDS)


class _HookedKernel(Kernel):
    def __init__(self, kernel: Kernel, hook: Callable[[], None]) -> None:
        self._kernel = kernel
        self._hook = hook

    def bind(
        self, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory | None = None
    ) -> Launch:
        launch = self._kernel.bind(inputs, outputs, scratch)

        def hooked() -> None:
            self._hook()
            launch()

        return hooked


@dataclass
class Faults:
    """Called before each kernel and each read of a service; may block or raise. Set after the start."""

    kernel: Callable[[], None] = lambda: None
    read: Callable[[int, int], None] = lambda offset, length: None
    readers: dict[str, MemoryReader] = field(default_factory=dict)

    def before_kernel(self) -> None:
        self.kernel()

    def before_read(self, offset: int, length: int) -> None:
        self.read(offset, length)

    def device(self, threads: int | None) -> CpuDevice:
        faults = self

        class Hooked(CpuDevice):
            joins = False  # so that each is a kernel of its own

            def load(self, graph: bytes) -> Kernel:
                return _HookedKernel(super().load(graph), faults.before_kernel)

        return Hooked(threads)

    def open_reader(self, path: Path) -> MemoryReader:
        reader = MemoryReader(path.read_bytes(), self.before_read)
        self.readers[path.parent.parent.name] = reader
        return reader


async def hold_up(
    service: ServiceUnderTest, faults: Faults, name: str, limit_seconds: float
) -> tuple[Gate, asyncio.Task[httpx.Response]]:
    """Send a request to ``name``, and return it once one of its kernels waits for the gate.

    The request has ``limit_seconds``. If a busy machine launches no kernel within that time, another
    request with twice the limit is sent.
    """
    gate = Gate()
    gates = [gate]
    faults.kernel = lambda: gates.pop().hold() if gates else None
    parameters = {"timeout": round(limit_seconds * 1e6)}
    sent = asyncio.create_task(service.infer(name, inputs_for("tiny"), parameters=parameters))
    await until(lambda: gate.is_reached or (sent.done() and is_idle(service)))
    if gate.is_reached:
        return gate, sent
    assert limit_seconds < LIMIT_SECONDS, f"{name}: no kernel was launched"
    return await hold_up(service, faults, name, 2 * limit_seconds)


def is_idle(service: ServiceUnderTest) -> bool:
    """Return whether all models serve, and no inference of them has started and not finished."""
    workers = [entry.worker for entry in service.inside.repository.entries()]
    return not any(
        worker is None or worker.fault or worker.stuck_seconds() > 0 for worker in workers
    )


class SwitchedReader(Reader):
    """Reads through ``current``, which a test changes while the model is loaded."""

    def __init__(self, current: Reader) -> None:
        self.current = self.sound = current
        self.kind, self.name, self.alignment = current.kind, current.name, current.alignment

    def read_into(self, offset: int, target: memoryview) -> None:
        self.current.read_into(offset, target)

    def check(self) -> None:
        self.current.check()

    def close(self) -> None:
        self.sound.close()


class Once:
    """A hook that raises ``error`` on call number ``number`` and never again."""

    def __init__(self, error: Exception, number: int = 0) -> None:
        self._error = error
        self._left = number

    def __call__(self, *_: int) -> None:
        self._left -= 1
        if self._left == -1:
            raise self._error


class Connection:
    """One request spoken in ASGI's own words, so that a test decides when the client goes away."""

    def __init__(
        self,
        path: str,
        body: bytes,
        *headers: tuple[str, str],
        more: bool = False,
        method: str = "POST",
        arrived_at: float | None = None,
        answerable_at: float | None = None,
    ) -> None:
        self.status = 0
        self.answer = b""
        #: Set with the first part of the answer.
        self.answered = asyncio.Event()
        self._messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": body, "more_body": more}
        ]
        self._gone = asyncio.Event()
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers],
            "client": ("127.0.0.1", 1),
            "server": ("service", 80),
        }
        self._fields = {"arrived_at": arrived_at, "answerable_at": answerable_at}

    def go_away(self) -> None:
        self._gone.set()

    async def call(self, app: Asgi) -> None:
        await app(extended(self._scope, self._receive, **self._fields), self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._messages:
            return self._messages.pop(0)
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.answer += message.get("body", b"")
            self.answered.set()


@dataclass(frozen=True)
class Result:
    """What the command printed, and its status."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def refuses(self, code: int, *words: str) -> None:
        """Check the status, and that stderr is one line of ours that has ``words``."""
        assert self.code == code, (self.out, self.err)
        assert self.out == ""
        assert "Traceback" not in self.err
        lines = self.err.splitlines()
        (line,) = (line for line in lines if not _LOGGED.match(line))
        assert line.startswith("layerstream: ")
        for word in words:
            assert word in line


Cli = Callable[..., Result]
