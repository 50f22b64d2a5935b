"""Answers that the event loop computes itself: as the thread does, and only where that delays no other."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from loader.errors import FileChangedError
from models.compiler import compile_onnx
from pipeline.devices.base import KernelError
from pipeline.execution.computing import ComputingSweeper
from pipeline.execution.errors import CancelledError, DeadlineError
from pipeline.execution.given import Take
from pipeline.execution.sweep import Sweeper, sweeper_for
from pipeline.schedule.schedule import Stage
from server.repository.served_engine import ComputedAnswer
from server.repository.worker import Worker
from server.settings.settings import Settings
from tests.examples import over
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    LIMIT_SECONDS,
    Connection,
    Faults,
    Gate,
    Once,
    Packs,
    ServiceUnderTest,
    Tensors,
    arrays,
    close,
    error,
    inputs_for,
    request,
    serving,
    until,
)

PAIR = inputs_for("pair")


@pytest.fixture
async def quick(
    settings: SettingsFactory, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ServiceUnderTest]:
    """A service whose "pair" is resident and counts as quick however busy the machine is."""
    monkeypatch.setattr("server.repository.served_engine._QUICK_SECONDS", 30.0)
    roomy = settings(64 << 20, models=("pair",), architecture="pre")
    async with serving(roomy) as service:
        yield service


async def warm(service: ServiceUnderTest) -> Worker:
    """Have the worker see that answers are quick."""
    worker = service.worker("pair")
    assert (await service.infer("pair", PAIR)).status_code == 200
    await idle(worker)
    assert worker.served.is_quick, "it has seen that answers take little"
    assert worker.line.idle
    return worker


async def idle(worker: Worker) -> None:
    """Wait until the thread of ``worker`` is back in its line."""
    await until(lambda: worker.line.idle)


def computed_by(service: ServiceUnderTest, faults: Faults) -> list[str]:
    """Names of the threads that kernels ran on, as they run."""
    names: list[str] = []
    faults.kernel = lambda: names.append(threading.current_thread().name)
    return names


async def test_the_loop_answers_as_the_thread_does(
    quick: ServiceUnderTest, faults: Faults, packs: Packs
) -> None:
    names = computed_by(quick, faults)
    await warm(quick)
    assert {name.partition("-")[0] for name in names} == {"engine"}
    names.clear()
    for seed in range(5):
        given = inputs_for("pair", seed)
        by_loop = arrays(await quick.infer("pair", given))
        by_thread = (await quick.worker("pair").infer(given, 30.0)).outputs
        close(by_loop, packs.expected("pair", given))
        for name, array in by_thread.items():
            assert by_loop[name].tobytes() == array.tobytes()
        await idle(quick.worker("pair"))
    assert {name.partition("-")[0] for name in names} == {"MainThread", "engine"}


async def test_it_is_counted_as_any_other(quick: ServiceUnderTest) -> None:
    await warm(quick)
    for _ in range(3):
        await quick.infer("pair", PAIR)
    counts = [
        await quick.metric("layerstream_requests_total", model="pair", outcome="ok"),
        await quick.metric("layerstream_request_seconds_count", model="pair"),
        await quick.metric("layerstream_stage_seconds_count", model="pair", stage="kernel"),
        await quick.metric("layerstream_stage_seconds_count", model="pair", stage="queue"),
    ]
    assert counts == [4] * 4
    assert quick.inside.request_memory.used_bytes == 0


async def test_a_short_answer_has_the_time_of_its_request(
    quick: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a fixed second a request that came before a pause of the process had none left after it."""
    worker = await warm(quick)
    answer, left = worker.served.answer, list[float]()

    def seen(inputs: Tensors, deadline: float, take: Take[Any]) -> ComputedAnswer[Any]:
        left.append(deadline - time.monotonic())
        return answer(inputs, deadline, take)

    monkeypatch.setattr(worker.served, "answer", seen)
    limit = quick.inside.settings.request_timeout
    for parameters, seconds in (({}, limit), ({"timeout": 20_000_000}, 20.0)):
        response = await quick.infer("pair", PAIR, parameters=parameters)
        assert response.status_code == 200
        assert seconds - 10.0 < left.pop() <= seconds


async def test_a_short_answer_that_would_be_late_is_not_computed(
    quick: ServiceUnderTest, faults: Faults
) -> None:
    worker = await warm(quick)
    worker.served.usual_seconds, ran = 20.0, computed_by(quick, faults)
    refused = await quick.infer("pair", PAIR, parameters={"timeout": 10_000_000})
    error(refused, 503, "no answer in time")
    assert int(refused.headers["Retry-After"]) >= 10
    assert ran == []


async def test_faults_end_one_request_and_no_more(quick: ServiceUnderTest, faults: Faults) -> None:
    worker = await warm(quick)
    faults.kernel = Once(KernelError("broke"))
    failed = await quick.infer("pair", PAIR)
    assert failed.status_code >= 500
    assert "broke" in error(failed, failed.status_code)
    assert worker.stuck_seconds() == 0
    assert worker.fault is None
    assert (await quick.infer("pair", PAIR)).status_code == 200


async def test_a_file_that_was_changed_takes_the_model_out_of_service(
    quick: ServiceUnderTest,
) -> None:
    worker = await warm(quick)

    def changed() -> None:
        raise FileChangedError("weights.bin: changed on disk")

    worker.served.reader.check = changed  # type: ignore[method-assign]
    error(await quick.infer("pair", PAIR), 503, "changed on disk")
    assert "changed on disk" in str(worker.fault)
    error(await quick.infer("pair", PAIR), 503)


async def test_while_the_thread_computes_the_loop_does_not(
    quick: ServiceUnderTest, faults: Faults
) -> None:
    worker = await warm(quick)
    gate, running = Gate(), list[int]()
    most = 0

    def kernel() -> None:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        gate.hold()
        running.pop()

    faults.kernel = kernel
    first = asyncio.create_task(worker.infer(PAIR, 30.0))
    await gate.reached()
    assert not (worker.served.is_quick and worker.line.idle)
    assert worker.stuck_seconds() > 0
    second = asyncio.create_task(quick.infer("pair", PAIR))
    await until(lambda: len(worker.line))
    gate.open()
    await first
    assert (await second).status_code == 200
    assert most == 1


async def test_a_model_that_leaves_while_a_body_comes_is_not_computed(
    quick: ServiceUnderTest,
) -> None:
    """The request had its worker before; its engine is closed, or just being closed by a thread."""
    worker = await warm(quick)
    computed: list[int] = []
    run = worker.engine.run

    def counted(*args: object, **kwargs: object) -> object:
        computed.append(1)
        return run(*args, **kwargs)  # type: ignore[arg-type]

    worker.engine.run = counted  # type: ignore[method-assign,assignment]
    client = Sending("/v2/models/pair/infer")
    serving_it = asyncio.create_task(client.call(quick.asgi))
    await client.asked.wait()
    await quick.inside.repository.unload("pair")
    assert not (worker.served.is_quick and worker.line.idle)
    client.send_body(json.dumps(request(PAIR)).encode())
    await serving_it
    assert client.status == 503
    assert b"leaving service" in client.answer
    assert computed == []


class Sending(Connection):
    """A client whose body comes when a test says so; ``asked`` is set when it is waited for."""

    def __init__(self, path: str) -> None:
        super().__init__(path, b"")
        self._messages.clear()
        self.asked = asyncio.Event()
        self._body: asyncio.Queue[bytes] = asyncio.Queue()

    def send_body(self, body: bytes) -> None:
        self._body.put_nowait(body)

    async def _receive(self) -> dict[str, object]:
        self.asked.set()
        return {"type": "http.request", "body": await self._body.get(), "more_body": False}


# Time that depends on the data


def loop_model() -> onnx.ModelProto:
    """Adds one to x as often as n says: a kernel of microseconds or of minutes."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["state", "one"], ["next"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, (1, 4)),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, (1, 4)),
        ],
        [numpy_helper.from_array(np.ones((1, 4), np.float32), "one")],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)],
        "loop",
        [
            helper.make_tensor_value_info("n", TensorProto.INT64, ()),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4)),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 4))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
async def loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServiceUnderTest]:
    """A service of that model, where everything counts as quick that may be."""
    monkeypatch.setattr("server.repository.served_engine._QUICK_SECONDS", 30.0)
    onnx.save(loop_model(), tmp_path / "loop.onnx")
    compile_onnx(tmp_path / "loop.onnx", tmp_path / "packs" / "loop")
    settings = Settings(repository=tmp_path / "packs", budget=64 << 20, threads=1)
    async with serving(settings) as service:
        yield service


def rounds(count: int) -> Tensors:
    return {"n": np.array(count, np.int64), "x": np.zeros((1, 4), np.float32)}


async def test_a_model_whose_time_depends_on_its_input_is_never_quick(
    loops: ServiceUnderTest,
) -> None:
    """Or else one request after many short ones holds the loop, and all others, for as long as it likes."""
    for _ in range(3):
        answer = arrays(await loops.infer("loop", rounds(3)))
        np.testing.assert_array_equal(answer["y"], np.full((1, 4), 3, np.float32))
    worker = loops.worker("loop")
    await idle(worker)
    assert worker.engine.reads_nothing
    assert not (worker.served.is_quick and worker.line.idle)
    # One that would never end ends when nobody waits for it, and the model answers others.
    endless = asyncio.ensure_future(worker.infer(rounds(1 << 60), LIMIT_SECONDS))
    await until(worker.stuck_seconds)
    endless.cancel()
    await idle(worker)
    assert arrays(await loops.infer("loop", rounds(2)))["y"].sum() == 8


# The sweep that only computes


def kernels_only(*kernels: Callable[[], None]) -> tuple[ComputingSweeper, Sweeper]:
    """A sweeper that takes the short way, and one for the same kernels that has the schedule run."""
    stages = (Stage("kernel", ((0,),) * len(kernels)),)
    short = sweeper_for(stages, (), kernels)
    assert isinstance(short, ComputingSweeper)
    return short, Sweeper(stages, (), kernels)


def test_the_short_way_runs_the_same_kernels_in_the_same_order() -> None:
    order: list[int] = []
    sweepers = kernels_only(*(lambda n=n: order.append(n) for n in range(5)))
    for sweeper in sweepers:
        for _ in range(2):
            order.clear()
            statistics = sweeper.run()
            assert order == list(range(5))
            assert 0 <= statistics.delay_seconds < 30
            assert statistics.stall_seconds == 0
        events: list[object] = []
        sweeper.run(record=events.append)
        assert events  # an observer sees every event, whichever way


@over("stop_after", [0, 1, 2])
@over("kind", ["cancelled", "broken"])
def test_the_short_way_ends_where_the_long_one_does(stop_after: int, kind: str) -> None:
    ran: list[int] = []
    goes_wrong = True

    def is_over() -> bool:
        return goes_wrong and len(ran) == stop_after

    def kernel() -> None:
        if kind == "broken" and is_over():
            raise KernelError("broke")
        ran.append(1)

    for sweeper in kernels_only(kernel, kernel, kernel):
        ran.clear()
        goes_wrong = True
        with pytest.raises(CancelledError if kind == "cancelled" else KernelError):
            sweeper.run(cancelled=is_over if kind == "cancelled" else lambda: False)
        assert len(ran) == stop_after
        ran.clear()
        goes_wrong = False
        sweeper.run()
        assert len(ran) == 3


def test_the_short_way_keeps_a_deadline() -> None:
    ran: list[int] = []
    for sweeper in kernels_only(lambda: ran.append(1)):
        with pytest.raises(DeadlineError):
            sweeper.run(deadline=0.0)
        assert ran == []
