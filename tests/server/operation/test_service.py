"""The life of a service: entered once, left to the end, in a process of another program as in its own."""

import asyncio
import gc
import itertools
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from fastapi import FastAPI

from server.app import create_app
from server.errors import NotFoundError
from server.operation.starting import StartupError
from server.operation.stop_signals import StopSignals
from server.service import HOW_TO_ENTER, Service
from server.settings.embedded import OF_CONNECTIONS, OF_PROCESS, OF_SOCKETS
from server.settings.settings import SettingsError
from tests.server.cancellation.steps import cancelled_at
from tests.server.conftest import SettingsFactory, service_threads
from tests.server.support import LIMIT_SECONDS, Packs, close, inputs_for, until

TINY = inputs_for("tiny")


def client_of(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


async def answers(service: Service, packs: Packs) -> None:
    """Check that "tiny" answers right."""
    (entry,) = service.repository.models.of("tiny")
    assert entry.worker is not None
    computed = await entry.worker.infer(TINY, LIMIT_SECONDS)
    close(computed.outputs, packs.expected("tiny", TINY))


async def test_a_service_that_was_not_entered_says_how(settings: SettingsFactory) -> None:
    service = Service(settings(models=("tiny",)))
    app = create_app(service)
    async with client_of(app) as client, app.router.lifespan_context(app):
        for path in ("/v2/health/live", "/v2/models/tiny", "/"):
            answer = await client.get(path)
            assert answer.status_code == 503
            assert HOW_TO_ENTER in answer.json()["error"]
        with pytest.raises(StartupError, match="not entered"):
            await service.loaded()
        async with service:
            assert service.unavailable == ""
            await service.loaded()
        answer = await client.get("/v2/health/live")
        assert answer.status_code == 503
        assert answer.json() == {"error": "the service has ended", "code": "not_serving"}


async def test_it_is_entered_once(settings: SettingsFactory) -> None:
    service = Service(settings(models=("tiny",)))
    async with service:
        with pytest.raises(RuntimeError, match="entered before"):
            await service.__aenter__()
        await service.loaded()  # it goes on
    with pytest.raises(RuntimeError, match="entered before"):
        await service.__aenter__()
    await service.close()


async def test_two_services_live_in_one_process(settings: SettingsFactory, packs: Packs) -> None:
    async with Service(settings(models=("tiny",))) as one:
        async with Service(settings(models=("tiny",))) as other:
            await asyncio.gather(one.loaded(), other.loaded())
            await asyncio.gather(answers(one, packs), answers(other, packs))
        await answers(one, packs)
    assert service_threads() == []


async def test_the_lifespan_of_an_application_enters_it(
    settings: SettingsFactory, packs: Packs
) -> None:
    """As its lifespan, and inside one of its own; settings alone have a service of their own."""
    service = Service(settings(models=("tiny",)))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with inner:
            yield

    inner = Service(settings(models=("tiny",)))
    owner = create_app(settings(models=("tiny",)))
    for app, entered in (
        (FastAPI(lifespan=service.lifespan), service),
        (FastAPI(lifespan=lifespan), inner),
        (owner, owner.state.service),
    ):
        async with app.router.lifespan_context(app):
            await entered.loaded()
            await answers(entered, packs)
        assert entered.unavailable == "the service has ended"


async def test_a_start_that_fails_is_in_the_log_or_raised(
    settings: SettingsFactory, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = settings(models=("absent",), model_control="none")
    for waits in (False, True):
        caplog.clear()
        async with Service(chosen) as service:
            if waits:
                with pytest.raises(NotFoundError, match="absent"):
                    await service.loaded()
            await until(lambda: "absent" in service.absence)
        assert ("the start failed" in caplog.text) is not waits


@pytest.mark.parametrize("name", [*OF_PROCESS, *OF_SOCKETS, *OF_CONNECTIONS])
def test_settings_of_the_process_are_refused_in_another_program(
    settings: SettingsFactory, name: str
) -> None:
    base = settings()
    values = {"memory": 1 << 30, "port": 0, "proxy_protocol": False, "unix_socket_mode": "600"}
    changed = base.model_copy(update={name: values.get(name)})
    with pytest.raises(SettingsError, match=f"{name}.*layerstream serve"):
        Service(changed)
    Service(changed, owns_process=True)


def test_a_port_for_grpc_needs_who_listens(settings: SettingsFactory) -> None:
    chosen = settings(grpc_port=0, max_connections=4)
    with pytest.raises(SettingsError, match=r"grpc_port.*listeners"):
        Service(chosen)
    Service(chosen, listeners=[lambda service: pytest.fail("nothing was entered")])


async def test_nothing_of_the_process_changes(settings: SettingsFactory, packs: Packs) -> None:
    """Signals, environment, the interpreter's settings, the log and its levels, but for loggers of ours."""

    def observed() -> list[object]:
        root = logging.getLogger()
        return [
            [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)],
            dict(os.environ),
            sys.getswitchinterval(),
            (gc.isenabled(), gc.get_threshold()),
            (root.level, list(root.handlers), logging.lastResort),
            threading.excepthook,
            asyncio.get_running_loop().get_exception_handler(),
        ]

    before, frozen = observed(), gc.get_freeze_count()
    async with Service(settings(models=("tiny",))) as service:
        await service.loaded()
        await answers(service, packs)
        assert observed() == before
    assert observed() == before
    assert gc.get_freeze_count() <= frozen  # of what others froze some may go


async def test_a_start_and_an_end_cancelled_at_every_await_leave_nothing(
    settings: SettingsFactory,
) -> None:
    """Who enters, waits, and leaves is cancelled once, at each step; at the end all is closed."""
    services: list[Service] = []

    async def life() -> None:
        services.append(Service(settings(models=("tiny",))))
        async with services[-1] as service:
            await service.loaded()

    for step in itertools.count(1):
        had_as_many = await cancelled_at(step, life)
        service = services.pop()
        assert service.unavailable == "the service has ended", step
        assert service.budget.held() == {}
        assert service_threads() == []
        assert asyncio.all_tasks() == {asyncio.current_task()}
        if not had_as_many:
            assert step > 10
            return


async def test_a_close_that_is_cancelled_closes_all_and_may_be_called_again(
    settings: SettingsFactory,
) -> None:
    service = Service(settings(models=("tiny",)))
    await service.__aenter__()
    closing = asyncio.create_task(service.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert service_threads() == []
    await service.close()


async def test_the_first_signal_sets_an_event_and_a_second_one_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, ended = 0.0, list[tuple[int, int]]()
    monkeypatch.setattr("server.operation.stop_signals.time.monotonic", lambda: now)
    monkeypatch.setattr(os, "kill", lambda process, signum: ended.append((process, signum)))
    before = [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)]
    signals = StopSignals()
    with signals.caught():
        signal.raise_signal(signal.SIGINT)
        await asyncio.wait_for(signals.stop.wait(), LIMIT_SECONDS)
        signal.raise_signal(signal.SIGINT)  # the same one, sent to the group
        assert ended == []
        now = 1.0
        signal.raise_signal(signal.SIGTERM)
        assert ended == [(os.getpid(), signal.SIGTERM)]
    assert [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)] == before
