"""The whole service with keys, on a Unix socket and with TLS; a signal has it read them again."""

import asyncio
import contextlib
import shutil
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from server.access import KeyFileError, add_key
from server.operation.service_manager import Notifier
from server.serve import serve
from server.settings.settings import Settings
from server.transport.certificate import CertificateError
from tests.server.conftest import SettingsFactory, service_threads
from tests.server.support import LIMIT_SECONDS, Packs
from tests.server.transport.authority import NAME, issue, trusting


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> asyncio.Semaphore:
    """Released each time the service says that it is ready."""
    found = asyncio.Semaphore(0)
    monkeypatch.setattr(Notifier, "ready", lambda self, status: found.release())
    return found


@contextlib.asynccontextmanager
async def running(settings: Settings, ready: asyncio.Semaphore) -> AsyncIterator[None]:
    """Serve from its first READY to SIGTERM, which the service manager is told of."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    stopping: list[Notifier] = []

    def stops(self: Notifier) -> None:
        stopping.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Notifier, "stopping", stops)
        async with asyncio.timeout(2 * LIMIT_SECONDS):
            task = asyncio.create_task(serve(settings))
            waiting = asyncio.create_task(ready.acquire())
            await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            assert not task.done(), task.exception()
            yield
            signal.raise_signal(signal.SIGTERM)
            await task
    assert len(stopping) == 1
    signal.signal(signal.SIGTERM, before)


async def test_a_unix_socket_with_keys_and_a_signal(
    settings: SettingsFactory, packs: Packs, tmp_path: Path, ready: asyncio.Semaphore
) -> None:
    path, keys, repository = tmp_path / "socket", tmp_path / "keys", tmp_path / "packs"
    shutil.copytree(packs.repository / "tiny", repository / "tiny")
    add_key(keys, "first", "infer")
    chosen = settings(
        repository=repository, models=(), budget=128 << 20, keys=keys, unix_socket=path
    )
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with (
        running(chosen, ready),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        assert path.stat().st_mode & 0o777 == 0o660
        key = add_key(keys, "late", "admin")
        headers = {"authorization": f"Bearer {key}"}
        index = "/v2/repository/index"
        assert (await client.post(index, headers=headers)).status_code == 401
        shutil.copytree(packs.repository / "pair", repository / "pair")
        signal.raise_signal(signal.SIGHUP)
        await ready.acquire()
        names = [each["name"] for each in (await client.post(index, headers=headers)).json()]
        assert names == ["pair", "tiny"]
        assert (await client.get("/v2/models/pair/ready", headers=headers)).status_code == 200
    assert not path.exists()
    assert service_threads() == []


async def test_without_keys_a_unix_socket_is_this_machine(
    settings: SettingsFactory, tmp_path: Path, ready: asyncio.Semaphore
) -> None:
    path = tmp_path / "socket"
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with (
        running(settings(models=("tiny",), unix_socket=path), ready),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        for verb in ("unload", "load"):
            answer = await client.post(f"/v2/repository/models/tiny/{verb}")
            assert answer.status_code == 200, answer.text
        headers = {"x-forwarded-for": "10.0.0.7"}
        answer = await client.post("/v2/repository/models/tiny/unload", headers=headers)
        assert answer.status_code == 403


async def test_a_renewed_certificate(
    settings: SettingsFactory,
    tmp_path: Path,
    ready: asyncio.Semaphore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from server.transport.listener import listen

    with listen("127.0.0.1", 0) as given:
        monkeypatch.setattr("server.serve.inherited", lambda: given)
        port = given.getsockname()[1]
        certificate, key = issue(tmp_path)
        chosen = settings(models=("tiny",), tls_certificate=certificate, tls_key=key)

        async def serial(client: httpx.AsyncClient) -> object:
            answer = await client.get("/v2/health/ready")
            assert answer.status_code == 200
            found = answer.extensions["network_stream"].get_extra_info("ssl_object")
            return found.getpeercert()["serialNumber"]

        def client() -> httpx.AsyncClient:
            base = f"https://127.0.0.1:{port}"
            context = trusting(ssl.TLSVersion.TLSv1_2)
            return httpx.AsyncClient(base_url=base, verify=context, trust_env=False)

        async with running(chosen, ready), client() as kept, client() as other:
            first = await serial(kept)
            issue(tmp_path, NAME)
            signal.raise_signal(signal.SIGHUP)
            await ready.acquire()
            assert await serial(kept) == first  # its connection is the one of before
            assert await serial(other) != first
            key.write_text("nonsense")
            signal.raise_signal(signal.SIGHUP)
            await ready.acquire()
            async with client() as third:
                assert await serial(third) != first


@pytest.mark.parametrize("setting", ["keys", "tls_certificate"])
async def test_files_that_cannot_be_used_stop_the_start(
    settings: SettingsFactory, tmp_path: Path, setting: str
) -> None:
    with pytest.raises((KeyFileError, CertificateError), match="nowhere: No such file"):
        await serve(settings(port=0, **{setting: tmp_path / "nowhere"}))
    assert service_threads() == []
