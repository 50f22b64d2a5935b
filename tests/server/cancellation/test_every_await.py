"""Requests that are cancelled at each of their awaits, one after the other, leave nothing behind."""

import asyncio
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from models.compiler import CompileOptions, compile_onnx
from models.compiler.writing.hub_config import HubConfig
from server.access import add_key
from server.repository.compiling import Compiler
from server.repository.limited_process import Limits
from server.repository.uploads import Uploads
from server.settings.settings import Settings
from tests.examples import over
from tests.models.detector import square_finder
from tests.models.painter import STRETCH, painter
from tests.models.sounds import compile_listener, tone, wav
from tests.models.texts import OPENING, compile_encoder, open_fake, write_files
from tests.server.cancellation.held import at_rest, settled, turns
from tests.server.cancellation.steps import Work, cancelled_at
from tests.server.conftest import SettingsFactory
from tests.server.repository.fake_child import fake_compile
from tests.server.support import (
    Connection,
    Packs,
    ServiceUnderTest,
    arrays,
    close,
    inputs_for,
    picture,
    request,
    serving,
)

PAIR = inputs_for("pair")
MOST_STEPS = 2000


@pytest.fixture(autouse=True)
def spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of its own for temporary files, so that they can be counted."""
    folder = tmp_path / "spool"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


class Slow(Connection):
    """A client whose body comes in two parts, each behind a turn of the loop, as do places to write."""

    def __init__(
        self, path: str, body: bytes, *headers: tuple[str, str], method: str = "POST"
    ) -> None:
        path, _, query = path.partition("?")
        super().__init__(path, body[: len(body) // 2], *headers, ("host", "localhost"), more=True)
        self._scope |= {"method": method, "query_string": query.encode()}
        rest = {"type": "http.request", "body": body[len(body) // 2 :], "more_body": False}
        self._messages.append(rest)

    async def _receive(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        return await super()._receive()

    async def _send(self, message: Any) -> None:
        await asyncio.sleep(0)
        await super()._send(message)


def posting(service: ServiceUnderTest, path: str, body: bytes, *headers: tuple[str, str]) -> Work:
    """A request that must be answered well where it is not cancelled."""

    async def work() -> None:
        client = Slow(path, body, *headers)
        await client.call(service.asgi)
        assert client.status == 200, client.answer

    return work


async def at_every_await(
    service: ServiceUnderTest, work: Work, least: int, restored: Work | None = None
) -> None:
    """Cancel ``work`` at each of its awaits, of which there are ``least`` or more.

    ``restored`` makes of what became of it, whatever that is, what was before.
    """
    await cancelled_at(MOST_STEPS, work)  # the first one imports, fills caches, starts threads
    if restored is not None:
        await restored()
    before = await at_rest(service)
    for step in itertools.count(1):
        had_as_many = await cancelled_at(step, work)
        if restored is not None:
            await restored()
        await settled(service, before)
        if not had_as_many:
            assert step > least
            return


async def still_right(service: ServiceUnderTest) -> None:
    expected = arrays(await service.infer("pair", PAIR))
    close(arrays(await service.infer("pair", PAIR)), expected)


def infer(service: ServiceUnderTest) -> Work:
    body = json.dumps(request(PAIR)).encode()
    return posting(service, "/v2/models/pair/infer", body)


def long_infer(service: ServiceUnderTest) -> Work:
    """So much that it must take memory of the pool."""
    body = json.dumps(request(PAIR)).encode() + b" " * (100 << 10)
    return posting(service, "/v2/models/pair/infer", body)


def classify(service: ServiceUnderTest) -> Work:
    return posting(service, "/v2/models/tiny:classify", picture(200, 150))


def form(
    service: ServiceUnderTest, path: str = "/v2/models/tiny:classify", fields: bytes = b""
) -> Work:
    start = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\n'
    body = fields + start + picture(200, 150) + b"\r\n--b--\r\n"
    kind = ("content-type", "multipart/form-data; boundary=b")
    return posting(service, path, body, kind)


@pytest.fixture
async def service(
    settings: SettingsFactory, packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ServiceUnderTest]:
    """One that hands each request to a thread, however quick, with a repository of its own."""
    monkeypatch.setattr("server.repository.served_engine._QUICK_SECONDS", 0.0)
    for name in ("tiny", "pair"):
        shutil.copytree(packs.repository / name, tmp_path / "packs" / name)
    chosen = settings(models_budget=64 << 20, repository=tmp_path / "packs")
    async with serving(chosen) as started:
        compiler = Compiler("cpu", Limits(1 << 30, 60), fake_compile)
        started.inside.uploads = Uploads(started.inside.repository, compiler)
        yield started


@over(
    "of, least",
    [(infer, 3), (long_infer, 4), (classify, 8), (form, 8)],
    ids=["infer", "long_infer", "classify", "form"],
)
async def test_requests_leave_nothing(
    service: ServiceUnderTest, of: Callable[[ServiceUnderTest], Work], least: int
) -> None:
    await at_every_await(service, of(service), least)
    await still_right(service)


async def test_depth_and_drawings_leave_nothing(
    packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.repository.served_engine._QUICK_SECONDS", 0.0)
    onnx.save(painter("one"), tmp_path / "deep.onnx")
    options = CompileOptions(preprocess=STRETCH, configs=(HubConfig("config.json", task="depth"),))
    compile_onnx(tmp_path / "deep.onnx", tmp_path / "packs" / "deep", options)
    shutil.copytree(packs.repository / "pair", tmp_path / "packs" / "pair")
    values = {"repository": tmp_path / "packs", "budget": 64 << 20, "memory_pressure": "off"}
    async with serving(Settings.model_validate(values)) as service:
        for query in ("", "?format=npy", "?draw=1"):
            work = posting(service, f"/v2/models/deep:depth{query}", picture(200, 150))
            await at_every_await(service, work, 8)
        await still_right(service)


async def test_a_camera_leaves_nothing(
    packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With keys: the form is begun, a key found in it, and the detector, before a place is taken."""
    monkeypatch.setattr("server.repository.served_engine._QUICK_SECONDS", 0.0)
    onnx.save(square_finder(True), tmp_path / "finder.onnx")
    compile_onnx(tmp_path / "finder.onnx", tmp_path / "packs" / "finder")
    key = add_key(tmp_path / "keys", "camera", "infer")
    shutil.copytree(packs.repository / "pair", tmp_path / "packs" / "pair")
    values = {"repository": tmp_path / "packs", "budget": 128 << 20, "keys": tmp_path / "keys"}
    values |= {"deepstack": True, "memory_pressure": "off"}
    async with serving(Settings.model_validate(values)) as service:
        service.client.headers["authorization"] = f"Bearer {key}"
        field = b'--b\r\nContent-Disposition: form-data; name="api_key"\r\n\r\n%b\r\n'
        work = form(service, "/v1/vision/detection", field % key.encode())
        await at_every_await(service, work, 8)
        await still_right(service)


async def test_texts_leave_nothing(
    packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is long, so that it is tokenised twice; several that share a pass."""
    monkeypatch.setattr("server.repository.served_engine._QUICK_SECONDS", 0.0)
    monkeypatch.setattr(OPENING, open_fake)
    write_files(tmp_path)
    compile_encoder(tmp_path)
    shutil.copytree(packs.repository / "pair", tmp_path / "repository" / "pair")
    values = {"repository": tmp_path / "repository", "budget": 64 << 20, "lanes": 3}
    async with serving(Settings.model_validate(values | {"memory_pressure": "off"})) as service:
        long = json.dumps({"text": "word" * 400 + " word" * 40}).encode()
        await at_every_await(service, posting(service, "/v2/models/encoder:embed", long), 6)
        several = json.dumps({"model": "encoder", "input": ["one", "two", "three", "four"]})
        await at_every_await(service, posting(service, "/v1/embeddings", several.encode()), 10)
        await still_right(service)


async def test_sounds_leave_nothing(
    packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.repository.served_engine._QUICK_SECONDS", 0.0)
    compile_listener(tmp_path)
    shutil.copytree(packs.repository / "pair", tmp_path / "repository" / "pair")
    values = {"repository": tmp_path / "repository", "budget": 64 << 20, "memory_pressure": "off"}
    async with serving(Settings.model_validate(values)) as service:
        await at_every_await(
            service, posting(service, "/v2/models/ear:infer", wav(tone(16_000, 0.9, 2))), 6
        )
        await still_right(service)


async def test_who_waits_for_memory_leaves_nothing(service: ServiceUnderTest) -> None:
    """Others hold all of it but for what one small request takes, and give it back a moment later."""
    memory = service.inside.request_memory
    loop = asyncio.get_running_loop()
    work = posting(service, "/v2/models/tiny:classify", picture(400, 300, "JPEG"))

    async def give_when_wanted(taken: int) -> None:
        async for _ in turns():
            if memory.waiting:
                break
        memory.give(taken, "other")
        waits.append(taken)

    waits: list[int] = []

    async def beside_others() -> None:
        taken = memory.room_bytes - memory.used_bytes
        await memory.take(taken, "other")
        others = loop.create_task(give_when_wanted(taken))
        try:
            await work()
        finally:
            others.cancel()
            if memory.held_by("other"):
                memory.give(taken, "other")

    await at_every_await(service, beside_others, 4)
    assert waits
    await still_right(service)


# What takes longer


@pytest.mark.slow
async def test_loads_and_unloads_leave_nothing(service: ServiceUnderTest) -> None:
    async def away_and_back() -> None:
        await posting(service, "/v2/repository/models/tiny/unload", b"{}")()
        await posting(service, "/v2/repository/models/tiny/load", b"{}")()

    restored = posting(service, "/v2/repository/models/tiny/load", b"{}")
    await at_every_await(service, away_and_back, 10, restored)
    await still_right(service)


@pytest.mark.slow
async def test_replanning_leaves_nothing(service: ServiceUnderTest) -> None:
    least = json.dumps({"memory_bytes": 1 << 20}).encode()
    smaller = posting(service, "/v2/repository/models/tiny/replan", least)
    restored = posting(service, "/v2/repository/models/tiny/replan", b'{"memory_bytes": null}')
    await at_every_await(service, smaller, 5, restored)
    await still_right(service)


@pytest.mark.slow
@pytest.mark.parametrize("accepts", ["*/*", "text/event-stream"])
async def test_uploads_leave_nothing_but_whole_versions(
    service: ServiceUnderTest, packs: Packs, accepts: str
) -> None:
    """What was placed when it was cancelled stays, and is taken away here."""
    folder = service.inside.repository.root / "sent"
    text = f"copy {packs.repository / 'tiny' / '1'}".encode()
    path = "/v2/repository/models/sent/upload"
    sending = posting(service, path, text, ("accept", accepts))

    async def restored() -> None:
        if folder.exists():
            assert [len(list(each.iterdir())) > 1 for each in folder.iterdir()] == [True]
            shutil.rmtree(folder)
        await service.inside.repository.remove("sent")

    await at_every_await(service, sending, 10, restored)
    await still_right(service)


@pytest.mark.slow
async def test_pages_that_follow_leave_nothing(service: ServiceUnderTest) -> None:
    async def follow() -> None:
        client = Slow("/page/events", b"", method="GET")
        following = asyncio.create_task(client.call(service.asgi))
        try:
            async for _ in turns():
                if client.answer:
                    break
            client.go_away()
            await following
        finally:
            following.cancel()
            await asyncio.wait({following})

    await at_every_await(service, follow, 5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_calls_leave_nothing(service: ServiceUnderTest, method: str) -> None:
    pytest.importorskip("grpc")
    from server.grpc.call import Call, CallPlaces
    from server.grpc.service import METHODS
    from server.protocol.attending import attend
    from server.transport.limits import ConnectionLimits
    from tests.server.grpc.stubs import asking

    message = asking("pair", PAIR).SerializeToString()
    limits = ConnectionLimits(1, None, header_seconds=1.0, idle_seconds=1.0, stall_seconds=1.0)
    shares = CallPlaces(limits, asyncio.get_running_loop().time)

    async def call() -> None:
        wire = FakeCall([message, message] if method == "ModelStreamInfer" else [message])
        asked = Call(service.inside, shares, method, wire, METHODS[method])  # type: ignore[arg-type]
        await attend(asked)
        assert len(wire.said) == wire.count

    await at_every_await(service, call, 3)
    await still_right(service)


class FakeCall:
    """What gRPC shows of a call whose client sends ``messages``."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages
        self.count = len(messages)
        self.said: list[bytes] = []

    def invocation_metadata(self) -> None: ...

    def set_trailing_metadata(self, metadata: object) -> None: ...

    def time_remaining(self) -> None: ...

    def done(self) -> bool:
        return False

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> object:
        from grpc import aio

        await asyncio.sleep(0)
        return self._messages.pop(0) if self._messages else aio.EOF

    async def write(self, message: bytes) -> None:
        await asyncio.sleep(0)
        self.said.append(message)

    async def abort(self, code: object, said: str, metadata: object) -> None:
        raise AssertionError(f"{code}: {said}")
