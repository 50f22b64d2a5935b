"""Metrics agree with the engine; logs are JSON lines that carry the id of their request."""

import asyncio
import io
import json
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest

from models.packs.pack import open_pack
from pipeline.devices.base import KernelError
from pipeline.devices.cpu import CpuDevice
from pipeline.profiles.delay_limits import SweepLimits
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile_file import manifest_checksum, save_profile
from pipeline.program.program import Program
from server.faults import Code, Fault, Outcome
from server.metrics import requests
from server.metrics.metrics import Exposition, _Collected
from server.operation import logs
from server.operation.process import process_memory
from tests.documents import LIMITED, METRIC_NAMES, PREDICTIONS
from tests.pipeline.made_profiles import profile
from tests.server.conftest import SettingsFactory
from tests.server.support import (
    LIMIT_SECONDS,
    Faults,
    Gate,
    Once,
    Packs,
    ServiceUnderTest,
    error,
    inputs_for,
    picture,
    request,
    serving,
)

REQUESTS = "layerstream_requests_total"
READ_BYTES = ("layerstream_read_bytes_total", frozenset({("model", "tiny")}))
STAGES = {"queue", "read", "copy", "kernel", "stall"}


def without_suffix(name: str) -> str:
    for suffix in ("_bucket", "_count", "_sum"):
        name = name.removesuffix(suffix)
    return name


async def test_every_described_metric_is_there_after_one_request(service: ServiceUnderTest) -> None:
    await service.infer("tiny", inputs_for("tiny"))
    found = {without_suffix(name) for name, _ in await service.metrics()}
    own = {name for name in found if name.startswith("layerstream_")}
    # No profile, no predictions: tests/server/repository/test_planning.py has them. No device with memory
    # of its own, no transport, no pressure, no text, one shape (tests/server/protocol/test_embed.py and
    # test_shapes.py there have others); whether there is a limit on memory depends on the machine. Why a
    # model does not serve, and cold starts: tests/server/repository/test_eviction.py.
    elsewhere = re.compile(
        "layerstream_(device_|connections|pressure_|ceiling_|released_|text_|shape_|truncated_|model_absent|"
        "cold_start_|bound_)"
    )
    absent = {name for name in METRIC_NAMES if elsewhere.match(name)} | PREDICTIONS | LIMITED
    assert own - LIMITED == METRIC_NAMES - absent


async def test_times_of_a_model_exist_from_its_first_request_on(service: ServiceUnderTest) -> None:
    """Outcomes before: of a first failure the rate is to rise. Many idle models are a short text."""
    metrics = service.inside.metrics
    names = [f"m{index}" for index in range(3)]
    for name in names:
        metrics.requests.expect(name, "1")

    async def lines(name: str) -> list[str]:
        text = (await metrics.render()).decode()
        return [line for line in text.splitlines() if f'model="{name}"' in line]

    before = {name: await lines(name) for name in names}
    assert f'{REQUESTS}{{model="m0",outcome="failed"}} 0.0' in before["m0"]
    assert not any("_seconds" in line for line in before["m0"])
    metrics.requests.end("m0", "1", Outcome.FAILED, 0.01)
    after = await lines("m0")
    assert f'{REQUESTS}{{model="m0",outcome="failed"}} 1.0' in after
    assert any(line.startswith("layerstream_request_seconds_bucket{") for line in after)
    assert any(line.startswith("layerstream_stage_seconds_sum{") for line in after)
    assert await lines("m1") == before["m1"]


async def test_requests_are_answered_while_many_models_are_scraped(
    service: ServiceUnderTest,
) -> None:
    metrics = service.inside.metrics
    names = [f"m{index:03}" for index in range(100)]
    for index, name in enumerate(names):
        metrics.requests.expect(name, "1")
        for _ in range(index):
            metrics.requests.end(name, "1", Outcome.OK, 0.01)
    scrape, iterations = asyncio.create_task(metrics.render()), 0
    while not scrape.done():
        await asyncio.sleep(0)
        iterations += 1
    assert iterations >= len(names) // 8
    lines = (await scrape).decode().splitlines()
    heads = [line for line in lines if line.startswith("# HELP ")]
    assert len(heads) == len(set(heads))  # each family is there once
    for index, name in enumerate(names):
        labels = f'model="{name}",outcome="ok"'
        assert f"layerstream_requests_total{{{labels}}} {float(index)}" in lines
        assert f'nv_inference_request_success{{model="{name}",version="1"}} {index}' in lines


def test_families_in_pieces_are_the_same() -> None:
    counted = requests.RequestMetrics()
    for name in ("one", 'two "quoted"', "three"):
        counted.end(name, "1", Outcome.OK, 0.01)
    once, pieces = Exposition(), Exposition()
    once.add_families(counted.collect(counted.models()))
    pieces.add_families(counted.collect(()))
    for name in counted.models():
        pieces.add_families(counted.collect([name]))
    assert pieces.encode() == once.encode()
    collected = _Collected(counted.collect(counted.models()))
    assert once.encode() == generate_latest(collected)


async def test_why_a_model_does_not_serve_is_one_word(
    settings: SettingsFactory, packs: Packs
) -> None:
    """An operator's wish, the budget and a fault are distinguished: each has another remedy, or none."""
    budget = packs.smallest("pair") + (1 << 12)
    async with serving(settings(models_budget=budget, models=("tiny", "pair"))) as service:

        async def absent(name: str) -> list[str]:
            found = await service.metrics()
            return [
                dict(labels)["reason"]
                for (family, labels), value in found.items()
                if family == "layerstream_model_absent" and value and ("model", name) in labels
            ]

        assert (await absent("tiny"), await absent("pair")) == (["refused"], [])
        await service.client.post("/v2/repository/models/pair/unload")
        assert await absent("pair") == ["unloaded"]
        assert (await service.client.post("/v2/repository/models/pair/load")).status_code == 200
        assert await absent("pair") == []
        service.worker("pair").served.leave(Fault(Code.READ_FAILED, "the disk is gone"))
        assert await absent("pair") == ["failed"]


async def test_sweeps_are_counted_with_their_time(service: ServiceUnderTest) -> None:
    for _ in range(3):
        await service.infer("tiny", inputs_for("tiny"))
    labels = {"model": "tiny"}
    assert await service.metric("layerstream_sweep_seconds_count", **labels) == 3
    total = await service.metric("layerstream_sweep_seconds_sum", **labels)
    assert total is not None
    assert 0 < total <= (await service.metric("layerstream_request_seconds_sum", **labels) or 0)


async def test_content_type(service: ServiceUnderTest) -> None:
    response = await service.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")


async def test_values_are_those_of_the_engine(service: ServiceUnderTest, packs: Packs) -> None:
    count = 3
    for number in range(count):
        await service.infer("tiny", inputs_for("tiny", number))
    engine = service.worker("tiny").engine
    found = await service.metrics()

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset({"model": "tiny", **labels}.items())]

    statistics = engine.statistics()
    shown = statistics.memory | {"sessions": engine.plan.memory["sessions"]}
    for kind, n_bytes in shown.items():
        assert value("layerstream_memory_bytes", kind=kind) == n_bytes
    plan = service.inside.budget.held()["tiny"]
    for kind in plan:
        assert plan[kind] <= value("layerstream_memory_bytes", kind=kind) < plan[kind] + 4096

    assert value(REQUESTS, outcome="ok") == statistics.sweeps == count
    assert value("layerstream_read_bytes_total") == statistics.read_bytes
    assert statistics.read_bytes == count * engine.plan.read_bytes
    assert value("layerstream_stage_seconds_sum", stage="stall") == pytest.approx(
        statistics.stall_seconds
    )
    for stage in STAGES:
        assert value("layerstream_stage_seconds_count", stage=stage) == count
    assert value("layerstream_request_seconds_count") == count
    assert value("layerstream_request_seconds_sum") > 0
    assert value("layerstream_model_ready") == 1
    assert value("layerstream_queue_length") == 0
    assert value("layerstream_model_weight_bytes") == packs.weights("tiny")
    assert value("layerstream_model_refusals_total") == 0
    nothing: frozenset[tuple[str, str]] = frozenset()
    assert found["layerstream_budget_bytes", nothing] == service.inside.settings.budget
    assert found["layerstream_budget_used_bytes", nothing] == service.inside.budget.used_bytes
    assert found["layerstream_process_base_bytes", nothing] > 0


async def test_reading_is_that_of_the_pool(service: ServiceUnderTest) -> None:
    for _ in range(3):
        await service.infer("tiny", inputs_for("tiny"))
    for name in ("tiny", "pair"):
        service.worker(name).engine.settle()
    figures = service.inside.pool.statistics().figures
    found = await service.metrics()

    def total(name: str) -> float:
        return found[f"layerstream_disk_{name}_total", frozenset({("reader", "preadv")})]

    assert total("read_bytes") == figures.n_bytes > found[READ_BYTES] > 0
    assert total("reads") == figures.reads > 0
    assert total("read_failures") == figures.failures == 0
    assert total("read_seconds") == pytest.approx(figures.seconds)
    assert 0 < total("read_cpu_seconds") == pytest.approx(figures.cpu_seconds)
    assert found["layerstream_disk_reads_hung", frozenset()] == 0
    (plan,) = service.worker("tiny").engine.plan.partitions
    ahead = sum(read.n_bytes for read in plan.reads[: plan.stages[0].ahead])
    assert found["layerstream_ahead_bytes", frozenset({("model", "tiny")})] == ahead
    kinds = [dict(labels)["reader"] for name, labels in found if name == "layerstream_reader_info"]
    assert len(kinds) == 2
    assert set(kinds) <= {"direct", "buffered"}


async def test_sweeps_above_the_bound_are_counted(
    settings: SettingsFactory, packs: Packs, tmp_path: Path
) -> None:
    """Limits of a plan that no sweep exceeds, and limits that every sweep does."""
    repository = Path(copytree(packs.repository, tmp_path / "packs"))
    pack = open_pack(repository / "tiny")
    machine = this_machine(pack.weights_path, CpuDevice(1))
    created = profile(Program.as_compiled(pack))
    known = replace(created, manifest=manifest_checksum(pack), machine=machine)
    save_profile(known, pack)
    chosen = settings(repository=repository, models=("tiny",))
    async with serving(chosen) as service:
        (plan,) = service.worker("tiny").engine.plan.partitions
    for seconds, exceeded in ((0.1, 0), (1e-9, 3)):  # far below the time limit in all
        limits = SweepLimits(
            architecture=plan.architecture.name,
            choice=plan.choice,
            runs=1,
            usual=tuple((seconds,) * len(stage) for stage in plan.stages),
            excess_seconds=0.0,
        )
        save_profile(known.with_limits(plan, limits), pack)
        async with serving(chosen) as service:
            worker = service.worker("tiny")
            for _ in range(3):
                await worker.infer(inputs_for("tiny"), LIMIT_SECONDS)
            watch = worker.served.watch
            assert watch is not None
            model = {"model": "tiny"}
            bound = await service.metric("layerstream_bound_seconds", **model)
            assert bound == pytest.approx(watch.bound_seconds)
        # Counted by the engine's thread, after the answer: all of it once that has ended.
        assert (watch.sweeps, watch.exceeded) == (3, exceeded)
        # None of them kept to limits of a nanosecond, so none contradicts the analysis.
        assert watch.violations == 0


async def test_a_model_has_few_series(service: ServiceUnderTest) -> None:
    """A scrape grows by as much for each model; the buckets of one histogram are the most of it."""
    await service.infer("tiny", inputs_for("tiny"))
    counts = Counter(
        without_suffix(name)
        for name, labels in await service.metrics()
        if ("model", "tiny") in labels
    )
    assert counts["layerstream_stage_seconds"] == 2 * len(requests.STAGES)
    assert max(counts.values()) <= 30
    assert sum(counts.values()) <= 90


async def test_preprocessing_is_a_stage(service: ServiceUnderTest) -> None:
    await service.client.post("/v2/models/tiny:classify", content=picture())
    labels = {"model": "tiny", "stage": "preprocess"}
    assert await service.metric("layerstream_stage_seconds_count", **labels) == 1


async def test_outcomes_add_up(service: ServiceUnderTest) -> None:
    sent = {"ok": 3, "invalid": 2}
    for _ in range(sent["ok"]):
        await service.infer("pair", inputs_for("pair"))
    for _ in range(sent["invalid"]):
        await service.infer("pair", inputs_for("tiny"))
    error(await service.infer("none", inputs_for("tiny")), 404)
    found = await service.metrics()
    counts = {
        dict(labels)["outcome"]: value
        for (name, labels), value in found.items()
        if name == REQUESTS and dict(labels)["model"] == "pair" and value
    }
    assert counts == sent
    assert counts.keys() <= set(Outcome)
    assert not any(dict(labels).get("model") == "none" for _, labels in found)


def test_what_the_kernel_says() -> None:
    assert min(process_memory().anonymous, process_memory().file) > 1 << 20


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the JSON handler writes while the test runs."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter())
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)


def parsed(lines: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def ours(lines: io.StringIO) -> list[dict[str, object]]:
    """Those of the server, without those of the client beside it."""
    return [line for line in parsed(lines) if str(line["logger"]).startswith("server.")]


@pytest.mark.parametrize("chosen", ["all", "errors"])
async def test_requests_are_lines_with_their_ids(
    settings: SettingsFactory, lines: io.StringIO, chosen: str
) -> None:
    """Probes and scrapes never, what was answered well if all are asked for, what failed always."""
    calls = [
        ("GET", "/metrics", 200),
        ("GET", "/v2", 200),
        ("GET", "/v2/health/live", 200),
        ("GET", "/v2/models/none", 404),
        ("GET", "/v2/health/ready", 200),
        ("POST", "/v2", 405),
    ]
    async with serving(settings(access_log=chosen)) as service:
        for method, path, status in calls:
            answer = await service.client.request(method, path, headers={"X-Request-ID": path[1:3]})
            assert answer.status_code == status
    access = [line for line in parsed(lines) if line["logger"] == "server.access"]
    written = [call for call in calls[1::2] if chosen == "all" or call[2] >= 400]
    for line, (method, path, status) in zip(access, written, strict=True):
        assert line["request_id"] == path[1:3]
        assert (line["method"], line["path"], line["status"]) == (method, path, status)
        assert isinstance(line["seconds"], float)
        assert ("'none'" in str(line.get("error"))) == path.endswith("none")
        assert {"time", "level", "message"} <= line.keys()


async def test_a_failure_is_logged_with_the_id_of_its_request(
    faults: Faults, service: ServiceUnderTest, lines: io.StringIO
) -> None:
    headers = {"X-Request-ID": "the-one"}
    faults.kernel = Once(KernelError("broke"))
    body = request(inputs_for("tiny"))
    answer = await service.client.post("/v2/models/tiny/infer", json=body, headers=headers)
    error(answer, 500)
    warnings = [line for line in parsed(lines) if line["level"] == "warning"]
    assert [line["request_id"] for line in warnings] == ["the-one"]
    assert "KernelError" in str(warnings[0]["message"])


async def test_a_late_answer_is_one_line_with_the_limit_that_was_given(
    settings: SettingsFactory, faults: Faults, lines: io.StringIO
) -> None:
    gate = Gate()
    faults.kernel = gate.hold
    async with serving(settings(deadline="tiny=0.05")) as service:
        body = request(inputs_for("tiny"))
        error(await service.client.post("/v2/models/tiny/infer", json=body), 504)
        gate.open()
    told = [line for line in ours(lines) if line.get("request_id")]
    assert [(line["status"], line["error"]) for line in told] == [(504, "no answer within 0.05 s")]


async def test_who_asks_for_what_does_not_serve_writes_nothing(
    settings: SettingsFactory, packs: Packs, lines: io.StringIO
) -> None:
    """The journal says once why a model does not serve, however often probes and clients ask."""
    budget = packs.smallest("pair") + (1 << 12)
    async with serving(settings(models_budget=budget, models=("tiny", "pair"))) as service:
        await service.client.post("/v2/repository/models/pair/unload")
        refused = await service.client.get("/v2/models/tiny/ready")
        assert refused.status_code == 409
        before = ours(lines)
        assert any("'tiny'" in str(line["message"]) for line in before)
        for _ in range(3):
            for path in ("/metrics", "/v2/health/live"):
                assert (await service.client.get(path)).status_code == 200
            assert (await service.client.get("/v2/health/ready")).status_code == 503
            for path in ("/v2/models/pair/ready", "/v2/models/pair/versions/1/ready"):
                error(await service.client.get(path), 404, "unloaded")
            error(await service.client.get("/v2/models/tiny/ready"), 409)
        assert ours(lines) == before


async def test_a_path_cannot_forge_a_line(service: ServiceUnderTest, lines: io.StringIO) -> None:
    await service.client.get('/v2/a%0a{"level":%20"error"}')
    access = [line for line in parsed(lines) if line["logger"] == "server.access"]
    assert [line["path"] for line in access] == ['/v2/a\n{"level": "error"}']


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "test", "levelname": "INFO", "msg": message, **fields})
    made.args = ()
    return made


@given(message=st.text(), path=st.text())
def test_any_record_is_one_json_line(message: str, path: str) -> None:
    line = logs.JsonFormatter().format(record(message, path=path, status=object()))
    assert len(line.splitlines()) == 1
    document = json.loads(line)
    assert document["message"] == message
    assert "request_id" not in document  # outside of a request


def test_fields_and_id_inside_a_request() -> None:
    token = logs.request_id.set("abc")
    try:
        made = record("request", path="/v2", status=200, other="not shown")
        document = json.loads(logs.JsonFormatter().format(made))
        text = logs.TextFormatter().format(made)
    finally:
        logs.request_id.reset(token)
    assert document["request_id"] == "abc"
    assert (document["path"], document["status"]) == ("/v2", 200)
    assert "other" not in document
    assert re.fullmatch(r"\d\d:\d\d:\d\d request path=/v2 status=200 request_id=abc", text)


@given(message=st.text(), path=st.text())
def test_any_record_is_one_line_of_text(message: str, path: str) -> None:
    """What a client sends neither ends a line nor reaches the terminal as a command."""
    line = logs.TextFormatter().format(record(message, path=path))
    assert len(line.splitlines()) == 1
    assert line.isprintable()


def test_text_names_the_level_of_what_is_not_usual() -> None:
    made = record("the disk is slow")
    made.levelno, made.levelname = logging.WARNING, "WARNING"
    assert logs.TextFormatter().format(made).endswith(" warning: the disk is slow")


def test_an_exception_stays_on_its_line() -> None:
    try:
        raise ZeroDivisionError("why")
    except ZeroDivisionError as exc:
        made = record("failed", exc_info=(type(exc), exc, exc.__traceback__))
    line = logs.JsonFormatter().format(made)
    assert "\n" not in line
    assert "ZeroDivisionError: why" in json.loads(line)["exception"]


def test_a_traceback_does_nothing_to_a_terminal() -> None:
    try:
        raise ValueError("what a client sent: \x1b[31m\r\u2028red")
    except ValueError:
        lines = logs.TextFormatter().format(record("unexpected", exc_info=sys.exc_info()))
    assert all(line.isprintable() for line in lines.split("\n"))
    assert r"\x1b[31m\r\u2028red" in lines


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("kept_logging")
@pytest.mark.parametrize(
    ("form", "stream", "begin"),
    [
        ("json", io.StringIO, r"\{"),
        ("json", Terminal, r"\{"),
        ("text", io.StringIO, r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d{4} hello"),
        ("text", Terminal, r"\d\d:\d\d:\d\d hello"),
    ],
)
def test_configure_sends_all_logs_to_stderr(
    form: str,
    stream: type[io.StringIO],
    begin: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    written = stream()
    monkeypatch.setattr("sys.stderr", written)
    logs.configure(form)
    logging.getLogger("anything").info("hello")
    assert capsys.readouterr().out == ""
    (line,) = written.getvalue().splitlines()
    assert "hello" in line
    assert re.match(begin, line)
    if form == "json":
        assert json.loads(line)["message"] == "hello"


@pytest.mark.usefixtures("kept_logging")
@pytest.mark.parametrize("form", ["text", "json"])
def test_where_journald_reads_each_line_has_its_priority(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a traceback; elsewhere none has."""
    with (tmp_path / "journal").open("w+") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        status = os.fstat(stream.fileno())
        logs.configure(form, {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        logging.getLogger("a").warning("late")
        try:
            raise ValueError("why")
        except ValueError:
            logging.getLogger("a").exception("failed")
        logs.configure(form, {"JOURNAL_STREAM": "1:1"})
        logging.getLogger("a").warning("elsewhere")
        stream.seek(0)
        first, *rest, last = stream.read().splitlines()
    assert first.startswith("<4>warning: late" if form == "text" else "<4>{")
    assert len(rest) > 3 if form == "text" else len(rest) == 1
    assert all(line.startswith("<3>") for line in rest)
    assert not last.startswith("<")
