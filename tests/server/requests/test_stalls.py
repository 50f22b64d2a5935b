"""Clients that stall, send too much or ask for too much, and what the others notice of it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from starlette.types import Message, Receive, Scope

from models.compiler import compile_onnx
from models.packs.pack import open_pack
from pipeline.budget.request_needs import Need
from server.requests.exchange import FREE_BYTES, GRACE_SECONDS
from server.settings.settings import Settings
from tests.examples import over
from tests.server.asgi import Asgi, extended
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    LIMIT_SECONDS,
    Faults,
    Gate,
    Packs,
    ServiceUnderTest,
    arrays,
    close,
    error,
    inputs_for,
    picture,
    request,
    serving,
    settled,
    until,
)

TINY = inputs_for("tiny")
BODY = json.dumps(request(TINY)).encode()
MIB = 1 << 20


class Client:
    """One request in ASGI's own words: its body comes and its answer is taken as a test says."""

    def __init__(
        self,
        service: ServiceUnderTest,
        path: str = "/v2/models/tiny/infer",
        http_version: str = "1.1",
    ) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self.answer = bytearray()
        self.takes = asyncio.Event()
        self.takes.set()
        self.offered = asyncio.Event()  # an answer has begun
        self.closing = False
        self._service = service
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": http_version,
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [],
            "client": ("127.0.0.1", 1),
            "server": ("service", 80),
        }
        receive = self._events.get
        self.task = asyncio.create_task(self._call(service.asgi, scope, receive))

    async def _call(self, asgi: Asgi, scope: Scope, receive: Receive) -> None:
        await asgi(extended(scope, receive, abort=self.abort), receive, self._take)

    def send(self, part: bytes, more: bool = True) -> None:
        self._events.put_nowait({"type": "http.request", "body": part, "more_body": more})

    def leave(self) -> None:
        self._events.put_nowait({"type": "http.disconnect"})

    async def _take(self, message: Message) -> None:
        self.offered.set()
        await self.takes.wait()
        if not self.closing:
            self.status = message.get("status", self.status)
            self.headers.update(message.get("headers", ()))
            self.answer += message.get("body", b"")

    # What an exchange sees of a connection

    def abort(self) -> None:
        self.closing = True
        self.takes.set()
        self.leave()

    async def ends(self, status: int, *words: str) -> None:
        """Check the answer."""
        await asyncio.wait_for(self.task, LIMIT_SECONDS)
        assert self.status == status, self.answer
        if words:
            message = json.loads(self.answer)["error"]
            assert all(word in message for word in words), message


@contextlib.asynccontextmanager
async def stalled(
    service: ServiceUnderTest, count: int, part: bytes
) -> AsyncIterator[tuple[list[Client], Callable[[], Any]]]:
    """Clients that send ``part`` of a body and then nothing; and a sweep after the grace."""
    clients = [Client(service) for _ in range(count)]
    for client in clients:
        client.send(part)
    await settled()
    yield (
        clients,
        lambda: service.inside.exchanges.sweep(
            asyncio.get_running_loop().time() + GRACE_SECONDS, hurry=False
        ),
    )
    for client in clients:
        client.leave()
    await asyncio.gather(*(client.task for client in clients))
    assert service.inside.request_memory.used_bytes == 0
    assert len(service.inside.exchanges) == 0


async def test_bodies_that_stall_hold_no_place_in_line(
    service: ServiceUnderTest, packs: Packs
) -> None:
    half = BODY[: len(BODY) // 2]
    async with stalled(service, 3 * 17, half):
        assert len(service.worker("tiny").line) == 0
        for _ in range(3):
            close(arrays(await service.infer("tiny", TINY)), packs.expected("tiny", TINY))


async def test_bodies_that_stall_hold_what_the_pool_has_and_no_more(
    settings: SettingsFactory, packs: Packs
) -> None:
    """Each has sent enough to be paid for; together they need more than there is."""
    part = BODY[:-1] + b" " * (2 * FREE_BYTES)
    async with serving(settings(request_memory=4 * MIB)) as service:
        memory = service.inside.request_memory
        async with stalled(service, 17, part) as (clients, sweep):
            assert memory.used_bytes <= memory.capacity_bytes
            assert memory.waiting > 0
            # A small request takes no memory before it has an answer, and then it waits its turn.
            other = asyncio.create_task(service.infer("tiny", TINY))
            while not other.done():  # as the server does twice a second
                sweep()
                await settled()
                assert memory.used_bytes <= memory.capacity_bytes
            close(arrays(other.result()), packs.expected("tiny", TINY))
            ended = [client for client in clients if client.task.done()]
            assert ended
            assert {client.status for client in ended} <= {408, 503}


async def test_a_photograph_that_stalls_lets_the_next_one_in(
    settings: SettingsFactory,
) -> None:
    """Its length is unknown, so no other body has room beside it."""
    async with serving(settings(request_memory=4 * MIB)) as service:
        image = picture(200, 150)
        first, second = (Client(service, "/v2/models/tiny:classify") for _ in range(2))
        first.send(image[: FREE_BYTES + 1])
        await until(lambda: service.inside.request_memory.used_bytes > 0)
        second.send(image, more=False)
        await until(lambda: service.inside.request_memory.waiting == 1)

        def swept() -> bool:  # again: a part may still be on its way to the file
            now = asyncio.get_running_loop().time()
            service.inside.exchanges.sweep(now + GRACE_SECONDS, hurry=False)
            return first.task.done()

        await until(swept)
        await first.ends(408, "no progress")
        await second.ends(200)
        assert service.inside.request_memory.used_bytes == 0


async def test_a_client_that_stalls_is_told(service: ServiceUnderTest) -> None:
    async with stalled(service, 1, BODY[:100]) as ((client,), _):
        now = asyncio.get_running_loop().time()
        service.inside.exchanges.sweep(now + GRACE_SECONDS, hurry=False)
        await settled()
        assert not client.task.done()
        service.inside.exchanges.sweep(now + GRACE_SECONDS, hurry=True)
        await client.ends(408, "no progress")
    outcome = await service.metric("layerstream_requests_total", model="tiny", outcome="cancelled")
    assert outcome == 1


async def test_a_body_over_the_pool_names_the_setting(settings: SettingsFactory) -> None:
    async with serving(settings(request_memory=2 * MIB, max_body=64 * MIB)) as service:
        client = Client(service, "/v2/models/tiny:classify")
        for _ in range(4):
            client.send(b"x" * MIB)
        await client.ends(413, "request_memory")
        assert service.inside.request_memory.used_bytes == 0


async def test_an_output_is_asked_for_once(service: ServiceUnderTest) -> None:
    for times, word in ((2, "twice"), (100, "twice"), (1000, "more values")):
        outputs = [{"name": "hidden"}] * times
        error(await service.infer("pair", inputs_for("pair"), outputs=outputs), 400, word)


# Every outcome gives the memory back


async def test_memory_comes_back_whatever_becomes_of_a_request(
    settings: SettingsFactory, faults: Faults, arrivals: asyncio.Semaphore
) -> None:
    padded = BODY[:-1] + b" " * (2 * FREE_BYTES) + b"}"  # so much that it is paid for
    async with serving(settings(request_memory=8 * MIB)) as service:
        memory = service.inside.request_memory

        async def outcome(
            status: int, body: bytes = padded, path: str = "/v2/models/tiny/infer", **how: Any
        ) -> None:
            client = Client(service, path)
            client.send(body[: FREE_BYTES + 1])
            await settled()
            client.send(body[FREE_BYTES + 1 :], more=how.get("more", False))
            if how.get("leaves"):
                await settled()
                client.leave()
            await client.ends(status)
            assert memory.used_bytes == 0
            assert memory.waiting == 0

        # First: a model that has answered is quick, and the event loop would be held at the gate.
        gate = Gate()
        faults.kernel = gate.hold
        client = Client(service)
        client.send(padded, more=False)
        await gate.reached()
        assert memory.used_bytes > 0
        client.leave()
        await client.ends(499)
        assert memory.used_bytes == 0
        gate.open()
        faults.kernel = lambda: None

        await outcome(200)
        await outcome(400, padded.replace(b'"FP32"', b'"FP64"'))
        await outcome(400, b"x" * MIB, "/v2/models/tiny:classify")
        await outcome(200, picture(200, 200, "BMP"), "/v2/models/tiny:classify")
        await outcome(413, b" " * (70 * MIB))
        await outcome(404, path="/v2/models/nobody/infer")
        await outcome(499, padded[:-1], more=True, leaves=True)
        late = padded.replace(b'{"inputs"', b'{"parameters": {"timeout": 1}, "inputs"')
        await outcome(503, late)

        def broken() -> None:
            raise ZeroDivisionError

        faults.kernel = broken
        await outcome(500)


async def test_an_answer_holds_memory_until_it_is_taken(service: ServiceUnderTest) -> None:
    memory = service.inside.request_memory
    client = Client(service)
    client.takes.clear()
    client.send(BODY, more=False)
    await client.offered.wait()
    assert memory.used_bytes > 0
    client.takes.set()
    await client.ends(200)
    assert memory.used_bytes == 0


async def test_an_answer_that_is_not_taken_is_cut_off(service: ServiceUnderTest) -> None:
    memory = service.inside.request_memory
    client = Client(service)
    client.takes.clear()
    client.send(BODY, more=False)
    await client.offered.wait()
    service.inside.exchanges.sweep(asyncio.get_running_loop().time() + GRACE_SECONDS, hurry=True)
    await asyncio.wait_for(client.task, LIMIT_SECONDS)
    assert client.closing
    assert memory.used_bytes == 0


# The client's own time


@pytest.mark.parametrize("where", ["in line", "while it computes"])
async def test_a_time_that_the_client_names_is_kept(
    settings: SettingsFactory, faults: Faults, where: str
) -> None:
    async with serving(settings()) as service:
        gate = Gate()
        faults.kernel = gate.hold
        first: asyncio.Task[Any] | None = None
        if where == "in line":
            first = asyncio.create_task(service.infer("tiny", TINY))
            await gate.reached()
        answer = await service.infer("tiny", TINY, parameters={"timeout": 50_000})
        error(answer, 504)
        gate.open()
        if first is not None:
            assert (await first).status_code == 200


async def test_a_time_of_zero_is_none(service: ServiceUnderTest) -> None:
    answer = await service.infer("tiny", TINY, parameters={"timeout": 0})
    assert answer.status_code == 200


@over("named", [-1, 1.5, "1", True, None])
async def test_a_time_that_is_no_time(service: ServiceUnderTest, named: object) -> None:
    error(await service.infer("tiny", TINY, parameters={"timeout": named}), 400, "timeout")


# Answers that only a run makes


@pytest.fixture(scope="module")
def growing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with "ones": as many ones as its input says, of which there may be 4 Mi."""
    folder = tmp_path_factory.mktemp("growing")
    limit = helper.make_tensor("value", TensorProto.INT64, (1,), [4 << 20])
    graph = helper.make_graph(
        [
            helper.make_node("Constant", [], ["limit"], value=limit),
            helper.make_node("Min", ["n", "limit"], ["count"]),
            helper.make_node("ConstantOfShape", ["count"], ["y"], value=one()),
        ],
        "ones",
        [helper.make_tensor_value_info("n", TensorProto.INT64, (1,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("k",))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "ones.onnx")
    compile_onnx(folder / "ones.onnx", folder / "packs" / "ones")
    return folder / "packs"


def one() -> onnx.TensorProto:
    return helper.make_tensor("value", TensorProto.FLOAT, (1,), [1.0])


def ones(count: int) -> bytes:
    return json.dumps(request({"n": np.array([count], np.int64)})).encode()


async def test_the_smallest_pool_has_room_for_tensors_that_come_in_parts(tmp_path: Path) -> None:
    """Text between the parts is no reason to hold the tensor twice."""
    port = helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8, 128, 128))
    answer = helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 8, 1, 1))
    node = helper.make_node("GlobalAveragePool", ["x"], ["y"])
    graph = helper.make_graph([node], "mean", [port], [answer])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "mean.onnx")
    compile_onnx(tmp_path / "mean.onnx", tmp_path / "packs" / "mean")
    pool = Need.of(open_pack(tmp_path / "packs" / "mean").manifest).tight_bytes
    x = np.full((1, 8, 128, 128), 0.123456789, np.float32)
    body = json.dumps(request({"x": x})).encode()
    async with growing_service(tmp_path / "packs", request_memory=pool) as service:
        client = Client(service, "/v2/models/mean/infer")
        for start in range(0, len(body), FREE_BYTES - 1):
            client.send(body[start : start + FREE_BYTES - 1])
        client.send(b"", more=False)
        await client.ends(200)
        assert service.inside.request_memory.used_bytes == 0


@contextlib.asynccontextmanager
async def growing_service(repository: Path, **changes: Any) -> AsyncIterator[ServiceUnderTest]:
    given = {"budget": 64 * MIB, "request_memory": 8 * MIB, "threads": 1, **changes}
    settings = Settings(repository=repository, **given)
    async with serving(settings) as service:
        yield service


async def test_a_large_answer_comes_in_pieces_and_lets_others_in(growing: Path) -> None:
    async with growing_service(growing) as service:
        client = Client(service, "/v2/models/ones/infer")
        turns = 0

        async def others() -> None:
            nonlocal turns
            while not client.task.done():
                turns += bool(client.answer)
                await asyncio.sleep(0)

        watching = asyncio.create_task(others())
        client.send(ones(MIB), more=False)
        await client.ends(200)
        await watching
        assert json.loads(client.answer)["outputs"][0]["data"] == [1.0] * MIB
        # Four MiB of text: a client that takes it as fast as it is made must not have the loop alone.
        assert turns >= 16


@pytest.mark.parametrize("count", [10, 300 << 10])
async def test_a_client_of_http_1_0_is_told_how_long_an_answer_is(
    growing: Path, count: int
) -> None:
    """It reads no chunks."""
    async with growing_service(growing) as service:
        client = Client(service, "/v2/models/ones/infer", "1.0")
        client.send(ones(count), more=False)
        await client.ends(200)
        assert client.headers[b"content-length"] == b"%d" % len(client.answer)
        assert json.loads(client.answer)["outputs"][0]["data"] == [1.0] * count


async def test_an_answer_over_the_pool_is_refused(growing: Path) -> None:
    async with growing_service(growing) as service:
        client = Client(service, "/v2/models/ones/infer")
        client.send(ones(3 * MIB), more=False)
        await client.ends(413, "request_memory")
        assert service.inside.request_memory.used_bytes == 0


async def test_answers_that_wait_for_each_others_memory_end(growing: Path) -> None:
    """Each holds what it read, and all need more than is left: the first waits, others are refused."""
    async with growing_service(growing, request_memory=2 * MIB, request_timeout=1000.0) as service:
        memory = service.inside.request_memory
        clients = [Client(service, "/v2/models/ones/infer") for _ in range(3)]
        for client in clients:
            client.send(ones(300 << 10)[:-1] + b" " * (FREE_BYTES + 1))
            await settled()
        assert memory.used_bytes > 3 * MIB // 2
        for client in clients:
            client.send(b"}", more=False)
        await until(lambda: all(client.task.done() for client in clients))
        assert sorted(client.status for client in clients) == [200, 503, 503]
        assert memory.used_bytes == 0


async def test_a_photograph_waits_for_memory_no_longer_than_its_deadline(
    settings: SettingsFactory,
) -> None:
    async with serving(settings(request_memory=4 * MIB, deadline="tiny=0.2")) as service:
        memory = service.inside.request_memory
        taken = memory.room_bytes
        await memory.take(taken)
        client = Client(service, "/v2/models/tiny:classify")
        client.send(picture(200, 150), more=False)
        await client.ends(503, "no memory", " within 0.")
        memory.give(taken)
        assert memory.used_bytes == 0


async def test_an_answer_waits_for_memory_no_longer_than_a_request_may(growing: Path) -> None:
    async with growing_service(growing, request_timeout=0.2) as service:
        memory = service.inside.request_memory
        await memory.take(6 * MIB)  # others have it, and keep it
        client = Client(service, "/v2/models/ones/infer")
        client.send(ones(MIB), more=False)
        await client.ends(503, "memory")
        assert client.headers[b"retry-after"] == b"1"
        assert memory.used_bytes == 6 * MIB
        memory.give(6 * MIB)
