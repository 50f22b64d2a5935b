"""Each change of what is served leaves one line: what, who asked, and why."""

import json
import logging
from pathlib import Path

import pytest

from server.access import add_key
from server.causes import attribution, because, requester
from server.faults import Code, Fault
from server.operation.logs import JsonFormatter, TextFormatter
from server.repository.polling import follow
from tests.server.conftest import SettingsFactory
from tests.server.repository.test_eviction import crowding
from tests.server.support import Packs, ServiceUnderTest, error, inputs_for, serving

CAUSE = ("by", "reason")


class Lines:
    """What the log has of changes since the last look, as text without times."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO)
        self._caplog = caplog

    def new(self) -> list[str]:
        """Each change: its words up to figures, and its cause."""
        changes = [record for record in self._caplog.records if "by" in vars(record)]
        lines_now = [
            " | ".join(
                (record.getMessage().partition(",")[0], *(vars(record).get(x, "") for x in CAUSE))
            )
            for record in changes
        ]
        self._caplog.clear()
        return lines_now


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    return Lines(caplog)


async def test_loads_and_unloads(settings: SettingsFactory, lines: Lines) -> None:
    async with serving(settings(models=("pair",))) as service:
        assert lines.new() == ["model pair: loaded | server | start"]
        client = service.client
        await client.post("/v2/repository/models/pair/unload")
        assert lines.new() == ["model pair: unloaded | 127.0.0.1 | unload request"]
        await client.post("/v2/repository/models/pair/load")
        assert lines.new() == ["model pair: loaded | 127.0.0.1 | load request"]
        await client.post("/v2/repository/models/pair/load")  # it is there, so nothing has changed
        assert lines.new() == []
        await follow(service.inside.repository)
        assert lines.new() == []


async def test_the_name_of_a_key(settings: SettingsFactory, lines: Lines, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    key = add_key(keys, "release", "admin")
    async with serving(settings(models=("pair",), keys=keys)) as service:
        lines.new()
        headers = {"Authorization": f"Bearer {key}"}
        await service.client.post("/v2/repository/models/pair/unload", headers=headers)
    assert lines.new() == ["model pair: unloaded | key release | unload request"]


async def test_limits(service: ServiceUnderTest, lines: Lines, packs: Packs) -> None:
    limit = {"memory_bytes": packs.smallest("tiny")}
    answer = await service.client.post("/v2/repository/models/tiny/replan", json=limit)
    assert answer.status_code == 200
    lines_now = lines.new()
    assert "model tiny: planned again | 127.0.0.1 | replan request" in lines_now
    assert "model tiny: limit of its memory: at most" in lines_now[-1]


async def test_the_line_of_a_server_that_serves_nothing(service: ServiceUnderTest) -> None:
    service.worker("pair").served.leave(Fault(Code.READ_FAILED, "the disk is gone"))
    assert service.inside.describe().startswith("serving 1 of 2 models (tiny) in ")
    service.worker("tiny").served.leave(Fault(Code.READ_FAILED, "the disk is gone"))
    assert service.inside.describe().startswith("serving none of 2 models in ")


async def test_a_request_for_which_others_go(
    settings: SettingsFactory, packs: Packs, lines: Lines
) -> None:
    async with serving(settings(**crowding(packs))) as service:
        lines.new()
        await service.infer("twin", inputs_for("twin"))
        lines_now = lines.new()
        assert "model tiny: evicted | 127.0.0.1 | model twin comes" in lines_now
        assert "model twin: loaded | 127.0.0.1 | a request to it" in lines_now


async def test_changes_that_fail(
    settings: SettingsFactory, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the status is 503, of which other requests are only counted."""
    async with serving(settings(models=("pair",))) as service:
        lines.new()

        def refuse(slot: object) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(service.inside.repository._preparer, "prepare", refuse)
        error(await service.client.post("/v2/repository/models/tiny/load"), 503)
        assert lines.new() == ["request | 127.0.0.1 | "]


def test_what_is_done_in_the_background_is_the_work_of_the_server() -> None:
    token = requester.set("10.0.0.7")
    try:
        with because("load request"):
            assert attribution() == {"by": "10.0.0.7", "reason": "load request"}
            with because("a better plan", by_server=True):
                assert attribution() == {"by": "server", "reason": "a better plan"}
            assert attribution("closer")["reason"] == "closer"
    finally:
        requester.reset(token)
    assert attribution() == {"by": "server"}


def test_as_text_and_as_json() -> None:
    fields = {"levelname": "INFO", "by": "key ops", "reason": "unload request"}
    record = logging.makeLogRecord({"msg": "model a: unloaded", **fields})
    assert (
        TextFormatter("").format(record) == 'model a: unloaded by="key ops" reason="unload request"'
    )
    line = json.loads(JsonFormatter().format(record))
    assert (line["by"], line["reason"]) == ("key ops", "unload request")
