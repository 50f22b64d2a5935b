"""Models that go for others, and come back with the next request to them."""

import asyncio
import json
import logging
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from loader.errors import ReadError
from models.packs.pack import Pack, read_pack
from server.errors import NotServingError
from server.operation.starting import StartupError
from server.repository import environment
from server.repository.on_disk import Slot
from server.repository.polling import follow
from server.repository.preparing import Prepared, Preparer
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
    request,
    serving,
    until,
)

MODELS = ("tiny", "twin", "pair")
Serve = Callable[..., AsyncIterator[ServiceUnderTest]]


@pytest.fixture
async def crowded(
    settings: SettingsFactory, packs: Packs, faults: Faults
) -> AsyncIterator[ServiceUnderTest]:
    """Room for one of "tiny" and "twin", beside "pair"."""
    async with serving(settings(**crowding(packs))) as service:
        yield service


def crowding(packs: Packs, **changes: object) -> dict[str, object]:
    room = packs.smallest("tiny") + packs.smallest("pair") + (16 << 10)
    return {
        "models_budget": room,
        "models": MODELS,
        "budget_policy": "evict-lru",
        "activations": "own",
        **changes,
    }


async def right(service: ServiceUnderTest, packs: Packs, name: str, seed: int = 0) -> None:
    inputs = inputs_for(name, seed)
    close(arrays(await service.infer(name, inputs)), packs.expected(name, inputs))
    budget = service.inside.budget
    assert budget.used_bytes <= budget.total_bytes


def loaded(service: ServiceUnderTest) -> set[str]:
    return set(service.inside.budget.held())


async def test_a_request_brings_its_model_back(crowded: ServiceUnderTest, packs: Packs) -> None:
    assert loaded(crowded) == {"tiny", "pair"}
    for turn, name in enumerate(("twin", "tiny", "twin", "pair", "twin", "tiny")):
        await right(crowded, packs, name, turn)
        assert name in loaded(crowded)
    # "pair" was not evicted: the one that gives enough room did.
    assert await crowded.metric("layerstream_model_evictions_total", model="pair") == 0
    assert await crowded.metric("layerstream_model_evictions_total", model="tiny") == 2
    assert await crowded.metric("layerstream_cold_start_seconds_count", model="twin") == 2
    seconds = await crowded.metric("layerstream_cold_start_seconds_sum", model="twin")
    assert seconds is not None
    assert seconds > 0


async def test_that_a_profile_is_missing_is_told_once(
    settings: SettingsFactory, packs: Packs, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with serving(settings(**crowding(packs))) as service:
        for name in ("twin", "tiny", "twin"):
            await right(service, packs, name)
    both, one = (line for line in caplog.messages if "no profile" in line)
    assert both.startswith("2 models have no profile (tiny, pair): ")
    assert one.startswith("model twin has no profile: ")


async def says_that_it_answers(service: ServiceUnderTest, name: str) -> None:
    assert (await service.client.get(f"/v2/models/{name}/ready")).status_code == 200
    described = (await service.client.get(f"/v2/models/{name}")).json()
    assert described["versions"] == ["1"]
    assert [port["name"] for port in described["inputs"]] == ["image"]
    assert described["parameters"]["memory_bytes"] is None
    assert name not in loaded(service)  # it was not asked for an answer


async def test_what_was_evicted_says_that_it_answers(
    crowded: ServiceUnderTest, packs: Packs
) -> None:
    await says_that_it_answers(crowded, "twin")  # there was no room for it at the start
    await right(crowded, packs, "twin")
    await says_that_it_answers(crowded, "tiny")
    client = crowded.client
    index = {row["name"]: row for row in (await client.post("/v2/repository/index")).json()}
    assert index["tiny"]["state"] == "UNAVAILABLE"
    assert "evicted" in index["tiny"]["reason"]
    assert index["tiny"]["code"] == "not_serving"
    absent = "layerstream_model_absent"
    assert await crowded.metric(absent, model="tiny", reason="evicted") == 1
    path = "/v2/repository/models/tiny/replan"
    error(await client.post(path, json={"memory_bytes": None}), 409, "tiny", "evicted")


async def test_requests_wait_for_one_load(crowded: ServiceUnderTest, packs: Packs) -> None:
    await asyncio.gather(*(right(crowded, packs, "twin", seed) for seed in range(8)))
    assert await crowded.metric("layerstream_cold_start_seconds_count", model="twin") == 1


@pytest.mark.parametrize("name", ["twin", "tiny"])  # refused at the start, and gone since
async def test_a_request_that_is_refused_brings_nobody_back(
    crowded: ServiceUnderTest, packs: Packs, name: str
) -> None:
    if name == "tiny":
        await right(crowded, packs, "twin")
    before = loaded(crowded)
    image = inputs_for(name)["image"]
    path = f"/v2/models/{name}/infer"
    error(await crowded.client.post(path, content=b"junk"), 400)
    error(await crowded.infer(name, {"picture": image}), 400, "picture")
    error(await crowded.infer(name, {"image": image[:, :2]}), 400, "image")
    error(await crowded.client.post(f"/v2/models/{name}:detect", content=b"junk"), 400, name)
    late = await crowded.infer(name, {"image": image}, parameters={"timeout": 1})
    error(late, 503, "timeout")
    assert loaded(crowded) == before
    assert await crowded.metric("layerstream_model_evictions_total", model="pair") == 0
    counted = "layerstream_requests_total"
    assert await crowded.metric(counted, model=name, outcome="invalid") == 4
    await right(crowded, packs, name)


async def test_a_deadline_before_the_usual_end_of_a_load_is_refused_immediately(
    crowded: ServiceUnderTest, packs: Packs
) -> None:
    await right(crowded, packs, "twin")
    await right(crowded, packs, "tiny")
    entry = crowded.inside.repository.models.find("twin")
    assert entry.evicted
    entry.cold_start_seconds = 15.0 * entry.cold_starts
    image = inputs_for("twin")["image"]
    late = await crowded.infer("twin", {"image": image}, parameters={"timeout": 10_000_000})
    error(late, 503, "twin", "evicted")
    assert int(late.headers["retry-after"]) in {14, 15}
    await until(lambda: "twin" in loaded(crowded))
    await right(crowded, packs, "twin")


@pytest.mark.slow
async def test_both_are_answered_under_load(crowded: ServiceUnderTest, packs: Packs) -> None:
    asked = [right(crowded, packs, MODELS[seed % 3], seed) for seed in range(24)]
    await asyncio.gather(*asked)


async def test_who_is_used_is_answered_before_it_goes(
    crowded: ServiceUnderTest, packs: Packs, faults: Faults
) -> None:
    gate = Gate()
    faults.kernel = gate.hold
    using = [asyncio.create_task(right(crowded, packs, "tiny", seed)) for seed in range(3)]
    await gate.reached()
    bringing = asyncio.create_task(right(crowded, packs, "twin"))
    coming_back = [asyncio.create_task(right(crowded, packs, "tiny", seed)) for seed in range(3)]
    await asyncio.sleep(0)
    assert "tiny" in loaded(crowded)
    gate.open()
    await asyncio.gather(*using, bringing, *coming_back)


@pytest.mark.parametrize("where", ["setting", "config.pbtxt"])
async def test_pinned_models_keep_their_memory(
    settings: SettingsFactory, packs: Packs, tmp_path: Path, where: str
) -> None:
    repository, pin = tmp_path / "repository", 2 * packs.smallest("tiny")
    shutil.copytree(packs.repository, repository)
    n_bytes = pin + packs.smallest("twin") + (16 << 10)
    options = crowding(packs, repository=repository, models_budget=n_bytes)
    if where == "setting":
        options["pin"] = f"tiny={pin}B"
    else:
        parameter = f'parameters {{ key: "pin" value {{ string_value: "{pin}B" }} }}'
        (repository / "tiny" / "config.pbtxt").write_text(parameter)
    async with serving(settings(**options)) as service:
        entry = service.inside.repository.models.find("tiny")
        assert entry.fitted is not None
        n_bytes = entry.fitted.plan.total_bytes
        assert n_bytes > 1.2 * packs.smallest("tiny")
        for name in ("pair", "twin", "pair", "twin"):
            await right(service, packs, name)
            assert entry.fitted.plan.total_bytes >= n_bytes
        assert entry.evictions == 0
        path = "/v2/repository/models/tiny/replan"
        refused = await service.client.post(path, json={"memory_bytes": packs.smallest("tiny")})
        error(refused, 409, "tiny", "at least")


async def test_a_pin_without_a_size_is_of_all_weights(
    settings: SettingsFactory, packs: Packs
) -> None:
    options = crowding(packs, pin="tiny", models_budget=16 << 20, models=("tiny", "pair"))
    async with serving(settings(**options)) as service:
        member = service.inside.repository.models.find("tiny")
        assert member.prepared is not None
        assert sum(member.prepared.sharer.least.values()) >= member.weight_bytes


async def test_idle_models_are_closed_and_the_next_request_loads_them(
    settings: SettingsFactory, packs: Packs, faults: Faults
) -> None:
    options = crowding(
        packs, models_budget=16 << 20, close_after="tiny=600,twin=600", pin="twin=1MiB"
    )
    async with serving(settings(**options)) as service:
        repository, loaded_before = service.inside.repository, loaded(service)
        assert await repository.close_idle() == []
        for entry in repository.entries():
            entry.uses.used_at -= 601
        gate = Gate()
        faults.kernel = gate.hold
        using = asyncio.create_task(right(service, packs, "tiny"))
        await gate.reached()
        repository.models["tiny"].uses.used_at -= 601
        assert await repository.close_idle() == [], (
            "a request uses it, or it is pinned, or has no time"
        )
        gate.open()
        faults.kernel = lambda: None
        await using
        repository.models["tiny"].uses.used_at -= 601
        assert await repository.close_idle() == ["tiny"]
        assert loaded(service) == loaded_before - {"tiny"}
        assert await service.metric("layerstream_model_evictions_total", model="tiny") == 1
        await right(service, packs, "tiny")
        assert loaded(service) == loaded_before


async def test_pins_beyond_the_budget_are_refused_at_the_start(
    settings: SettingsFactory, packs: Packs
) -> None:
    options = crowding(packs, pin="tiny,twin,pair=1MiB")
    with pytest.raises(StartupError, match=r"pinned \(.*\d+ bytes in excess \(setting pin\)"):
        async with serving(settings(**options)):
            pass


async def test_pinned_models_stay(settings: SettingsFactory, packs: Packs) -> None:
    async with serving(settings(**crowding(packs, evictable="twin,pair"))) as service:
        error(await service.infer("twin", inputs_for("twin")), 409, "'twin'", "excess")
        assert loaded(service) == {"tiny", "pair"}
        await right(service, packs, "tiny")


async def test_what_never_fits_is_not_promised(
    settings: SettingsFactory, packs: Packs, caplog: pytest.LogCaptureFixture
) -> None:
    small, large = sorted(("twin", "pair"), key=packs.smallest)
    room = (packs.smallest(small) + packs.smallest(large)) // 2
    changes = crowding(packs, models_budget=room, models=(small, large))
    with caplog.at_level(logging.INFO):
        async with serving(settings(**changes)) as service:
            error(await service.infer(large, inputs_for(large)), 409, repr(large), "excess")
            await right(service, packs, small)
    assert f"not served: model {large!r}" in caplog.text
    assert "a request to it makes some" not in caplog.text


async def test_without_the_policy_nobody_goes(settings: SettingsFactory, packs: Packs) -> None:
    async with serving(settings(**crowding(packs, budget_policy="refuse"))) as service:
        error(await service.infer("twin", inputs_for("twin")), 409, "'twin'")
        error(await service.client.post("/v2/repository/models/twin/load"), 409)
        assert loaded(service) == {"tiny", "pair"}


async def test_without_the_policy_a_closed_model_keeps_its_memory(
    settings: SettingsFactory, packs: Packs
) -> None:
    options = crowding(packs, budget_policy="refuse", close_after="tiny=600")
    async with serving(settings(**options)) as service:
        service.inside.repository.models["tiny"].uses.used_at -= 601
        assert await service.inside.repository.close_idle() == ["tiny"]
        error(await service.client.post("/v2/repository/models/twin/load"), 409, "'twin'")
        await right(service, packs, "tiny")
        assert loaded(service) == {"tiny", "pair"}
        await service.client.post("/v2/repository/models/tiny/unload")
        await service.client.post("/v2/repository/models/twin/load")
        assert loaded(service) == {"twin", "pair"}, "a client has given it up"


async def test_load_and_unload_by_hand(crowded: ServiceUnderTest, packs: Packs) -> None:
    assert (await crowded.client.post("/v2/repository/models/twin/load")).status_code == 200
    assert loaded(crowded) == {"twin", "pair"}
    await crowded.client.post("/v2/repository/models/tiny/unload")
    error(await crowded.infer("tiny", inputs_for("tiny")), 404, "unloaded")
    await right(crowded, packs, "twin")


async def test_a_client_waits_no_longer_than_it_may(
    crowded: ServiceUnderTest, packs: Packs, faults: Faults
) -> None:
    gate = Gate()
    faults.read = lambda offset, length: gate.hold()
    asked = {"timeout": 200_000}
    error(await crowded.infer("twin", inputs_for("twin"), parameters=asked), 504, "'twin'")
    gate.open()
    faults.read = lambda offset, length: None
    await right(crowded, packs, "twin")


async def test_a_request_is_read_before_it_waits_also_where_the_version_is_gone(
    settings: SettingsFactory, packs: Packs, tmp_path: Path
) -> None:
    repository = tmp_path / "repository"
    shutil.copytree(packs.repository, repository)
    shutil.copytree(repository / "tiny" / "1", repository / "tiny" / "2")
    async with serving(settings(**crowding(packs, repository=repository))) as service:
        await right(service, packs, "twin")
        shutil.rmtree(repository / "tiny" / "2")
        use = await service.inside.repository.find("tiny", None, LIMIT_SECONDS)
        assert use.pack.version == "1"
        assert use.worker is None
        assert "tiny" not in loaded(service)
        await right(service, packs, "tiny")


async def test_only_so_many_wait(settings: SettingsFactory, packs: Packs, faults: Faults) -> None:
    async with serving(settings(**crowding(packs, queue_limit=2))) as service:
        gate = Gate()
        faults.read = lambda offset, length: gate.hold()
        waiting = [asyncio.create_task(right(service, packs, "twin", seed)) for seed in range(2)]
        await gate.reached()
        refused = await service.infer("twin", inputs_for("twin"))
        error(refused, 503, "'twin'")
        assert refused.headers["retry-after"] == "1"
        gate.open()
        await asyncio.gather(*waiting)


async def test_a_load_that_fails_is_tried_again(
    crowded: ServiceUnderTest, packs: Packs, faults: Faults
) -> None:
    left = [ReadError("a bad block")]

    def read(offset: int, length: int) -> None:
        if left:
            raise left.pop()

    faults.read = read
    failures = [crowded.infer("twin", inputs_for("twin")) for _ in range(3)]
    for answer in await asyncio.gather(*failures):
        error(answer, 503, "a bad block")
    await right(crowded, packs, "twin")


async def test_room_is_made_before_a_model_is_prepared(
    crowded: ServiceUnderTest, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To prepare it takes memory, which the models that go still held."""
    beside: dict[str, set[str]] = {}
    prepare = Preparer.prepare

    def seen(preparer: Preparer, slot: Slot) -> Prepared:
        beside[slot.name] = loaded(crowded)
        return prepare(preparer, slot)

    monkeypatch.setattr(Preparer, "prepare", seen)
    for name in ("twin", "tiny"):
        await right(crowded, packs, name)
    assert beside == {"twin": {"pair"}, "tiny": {"pair"}}


async def test_who_went_for_what_cannot_be_prepared_comes_back(
    crowded: ServiceUnderTest, packs: Packs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_preparer: Preparer, slot: Slot) -> Prepared:
        raise NotServingError(f"model {slot.name!r}: no files left")

    with monkeypatch.context() as patched:
        patched.setattr(Preparer, "prepare", fail)
        error(await crowded.infer("twin", inputs_for("twin")), 503, "no files left")
    assert crowded.inside.repository.models.is_evicted("tiny")
    for name in ("tiny", "twin"):
        await right(crowded, packs, name)


async def test_who_asks_for_the_folder_to_be_followed_brings_nobody_back(
    crowded: ServiceUnderTest, packs: Packs
) -> None:
    before = loaded(crowded)
    await follow(crowded.inside.repository)
    assert loaded(crowded) == before
    await right(crowded, packs, "twin")


@pytest.fixture
def copied(packs: Packs, tmp_path: Path) -> Path:
    """A repository that a test may change."""
    for name in MODELS:
        shutil.copytree(packs.repository / name, tmp_path / "packs" / name)
    return tmp_path / "packs"


async def test_a_copy_that_is_under_way_is_not_taken(
    settings: SettingsFactory, packs: Packs, copied: Path
) -> None:
    async with serving(settings(**crowding(packs, repository=copied))) as service:
        weights = copied / "twin/1/weights.bin"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-4096] + bytes(4096))  # its full size before its last byte
        error(await service.infer("twin", inputs_for("twin")), 503, "not those of the manifest")
        assert loaded(service) == {"tiny", "pair"}  # none was evicted for it
        weights.write_bytes(whole)
        await right(service, packs, "twin")


async def test_requests_that_come_at_once_read_a_pack_once(
    crowded: ServiceUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest takes milliseconds to read, and memory that no budget counts."""
    read = []

    def counted(folder: Path) -> Pack:
        read.append(folder)
        return read_pack(folder)

    monkeypatch.setattr(environment, "read_pack", counted)
    asked = [crowded.client.post("/v2/models/twin/infer", content=b"junk") for _ in range(8)]
    asked += [crowded.client.get("/v2/models/twin") for _ in range(8)]
    assert [answer.status_code for answer in await asyncio.gather(*asked)] == [400] * 8 + [200] * 8
    assert len(read) == 1


async def test_a_request_is_computed_by_what_it_was_read_for(
    settings: SettingsFactory, packs: Packs, copied: Path
) -> None:
    """Another model takes the place of an evicted one while the body of a request to it comes."""
    inputs = inputs_for("twin")
    body = json.dumps(request(inputs)).encode()

    async def coming() -> AsyncIterator[bytes]:
        yield body[:-1]
        await asyncio.to_thread(shutil.rmtree, copied / "twin")
        await asyncio.to_thread(shutil.copytree, copied / "pair", copied / "twin")
        yield body[-1:]

    async with serving(settings(**crowding(packs, repository=copied))) as service:
        path = "/v2/models/twin/infer"
        error(await service.client.post(path, content=coming()), 503, "twin", "changed")
        error(await service.infer("twin", inputs), 400)
        await right(service, packs, "pair")


async def test_versions_that_are_laid_out_otherwise_meanwhile(
    settings: SettingsFactory, packs: Packs, copied: Path
) -> None:
    changes = crowding(packs, repository=copied)
    async with serving(settings(**changes)) as service:
        (copied / "twin/config.pbtxt").write_text("version_policy { all { } }")
        await right(service, packs, "twin")
        assert "twin/1" in loaded(service)


async def test_a_wrong_configuration_keeps_nobody_from_coming_back(
    settings: SettingsFactory, packs: Packs, copied: Path
) -> None:
    async with serving(settings(**crowding(packs, repository=copied))) as service:
        await right(service, packs, "twin")
        config = copied / "tiny" / "config.pbtxt"
        config.write_text("{")
        await right(service, packs, "tiny")
        error(await service.client.post("/v2/repository/models/tiny/load"), 503, "config.pbtxt:1")
        await right(service, packs, "tiny")
        index = (await service.client.post("/v2/repository/index")).json()
        # What found no room at the start has a version, too.
        assert {row["name"]: row["version"] for row in index}["twin"] == "1"
