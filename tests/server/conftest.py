"""A small repository, a service on it, and the promise that no test leaves a thread behind."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import numpy as np
import onnx
import pytest
import pytest_asyncio
from onnx import TensorProto, helper, numpy_helper

from cli.process import main
from models.compiler import CompileOptions, compile_onnx
from models.zoo.builder import SkeletonBuilder
from server.scheduling.line import Line
from server.scheduling.sweeps import Ticket
from server.settings.settings import Settings
from tests.models.nets import filled
from tests.server.support import (
    LABELS,
    PREPROCESS,
    REQUEST_MEMORY,
    Cli,
    Faults,
    Packs,
    Result,
    ServiceUnderTest,
    serving,
)

CHUNK_BYTES = 16 << 10


def classifier(name: str, seed: int) -> onnx.ModelProto:
    b = SkeletonBuilder(name, 16)
    x = b.relu(b.norm(b.conv(b.image, 32, 3, 2)))
    for _ in range(3):
        x = b.relu(b.norm(b.conv(x, 128, 3)))
    x = b.relu(b.conv(x, 128, 3, 2, bias=True))
    return filled(b.model(b.linear(b.flatten(b.global_pool(x)), len(LABELS))), seed)


def pair() -> onnx.ModelProto:
    """Two inputs, one of them of integers; three outputs, one of them of integers."""
    generator = np.random.default_rng(3)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(
            (generator.standard_normal(shape) / 8).astype(np.float32), name
        )

    def port(name: str, kind: int, width: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, (1, width))

    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["steps"], ["moved"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["x", "moved"], ["sum"]),
            helper.make_node("Gemm", ["sum", "w1", "b1"], ["raw"], transB=1),
            helper.make_node("Relu", ["raw"], ["hidden"]),
            helper.make_node("Gemm", ["hidden", "w2", "b2"], ["scores"], transB=1),
            helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=1),
        ],
        "pair",
        [port("x", TensorProto.FLOAT, 64), port("steps", TensorProto.INT8, 64)],
        [
            port("scores", TensorProto.FLOAT, 16),
            port("hidden", TensorProto.FLOAT, 256),
            port("best", TensorProto.INT64, 1),
        ],
        [weight("w1", 256, 64), weight("b1", 256), weight("w2", 16, 256), weight("b2", 16)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="session")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Packs:
    folder = tmp_path_factory.mktemp("packs")
    labelled = CompileOptions(chunk_bytes=CHUNK_BYTES, labels=LABELS, preprocess=PREPROCESS)
    recipes = {
        "tiny": (classifier("tiny", 1), labelled),
        "twin": (classifier("twin", 2), labelled),
        "pair": (pair(), CompileOptions(chunk_bytes=CHUNK_BYTES)),
    }
    sources = {name: folder / f"{name}.onnx" for name in recipes}
    for name, (model, _) in recipes.items():
        onnx.save(model, sources[name])
    repository = folder / "repository"
    for name, (_, options) in recipes.items():
        compile_onnx(sources[name], repository / name, options)
    return Packs(repository, sources)


SettingsFactory = Callable[..., Settings]


@pytest.fixture(scope="session")
def settings(packs: Packs) -> SettingsFactory:
    """Settings on the small repository: two models, rings far smaller than their weights.

    ``models_budget`` is for models alone, the memory of requests comes on top.
    """

    def make(models_budget: int | None = None, **changes: object) -> Settings:
        if models_budget is None:
            models_budget = packs.smallest("tiny") + packs.smallest("pair") + (256 << 10)
        values: dict[str, object] = {
            "repository": packs.repository,
            "budget": models_budget + REQUEST_MEMORY,
            "request_memory": REQUEST_MEMORY,
            "models": ("tiny", "pair"),
            "threads": 1,
            "memory_pressure": "off",  # what else this machine does changes no test
            **changes,
        }
        return Settings.model_validate(values)

    return make


@pytest.fixture
async def service(settings: SettingsFactory) -> AsyncIterator[ServiceUnderTest]:
    async with serving(settings()) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(settings: SettingsFactory) -> AsyncIterator[ServiceUnderTest]:
    """One service for a whole file, whose tests run in the loop of the file and leave it as it is."""
    async with serving(settings()) as started:
        yield started


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Readers in memory and kernels with hooks, for services started afterwards."""
    found = Faults()
    monkeypatch.setattr("pipeline.devices.cpu.CpuDevice", found.device)
    monkeypatch.setattr("server.repository.environment.open_reader", found.open_reader)
    return found


@pytest.fixture
def arrivals(monkeypatch: pytest.MonkeyPatch) -> asyncio.Semaphore:
    """Released each time a worker accepts a request."""
    accepted = asyncio.Semaphore(0)

    class Watched(Line[object]):
        def join(self, ticket: Ticket) -> None:
            super().join(ticket)
            accepted.release()

    monkeypatch.setattr("server.scheduling.dispatcher.Line", Watched)
    return accepted


@pytest.fixture(autouse=True)
def no_outside_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LAYERSTREAM_")]:
        monkeypatch.delenv(name)
    # Set and taken away, so that what a test leaves there is taken away, too.
    monkeypatch.setenv("LAYERSTREAM_CONFIG", "")
    monkeypatch.delenv("LAYERSTREAM_CONFIG")


def service_threads() -> list[str]:
    """Names of the threads of read pools and workers."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("reader-", "engine-", "copier"))]


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """A service of a whole file may start one more thread: as many as ever ran something at once."""
    before = service_threads()
    yield
    after = service_threads()
    if any(name.startswith("engine-") for name in before):
        before, after = (
            [name for name in names if "engine-" not in name] for names in (before, after)
        )
    assert after == before


@pytest.fixture
def kept_logging() -> Iterator[None]:
    """Puts back the handlers of the root logger, which ``logs.configure`` replaces."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    yield
    root.handlers = handlers
    root.setLevel(level)
    logging.getLogger("uvicorn.access").disabled = False
    logging.getLogger("uvicorn.error").setLevel(logging.NOTSET)


@pytest.fixture
def cli(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kept_logging: None
) -> Iterator[Cli]:
    """The command in this process."""
    # The tests' process is not the command's to set up.
    monkeypatch.setattr("cli.process.claim_process", lambda: None)
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["layerstream", *map(str, arguments)])
        # Help as wide as it likes, also where the tests have a narrow terminal.
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        captured = capsys.readouterr()
        return Result(int(caught.value.code or 0), captured.out, captured.err)

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)
