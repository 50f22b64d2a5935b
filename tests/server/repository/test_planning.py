"""Every architecture, with a profile and without: what serves, what is refused, and with which remedy."""

import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from loader.cores import reader_priority
from models.packs.folders import find_pack
from models.packs.pack import open_pack
from models.records import plain, read_record
from pipeline.devices.cpu import CpuDevice
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import Wanted
from pipeline.planning.plan import PlanError
from pipeline.profiles.machine import Machine, this_machine
from pipeline.profiles.profile_file import (
    manifest_checksum,
    prepared,
    save_profile,
)
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from server.operation.starting import StartupError
from tests.examples import thinned
from tests.pipeline.made_profiles import measured, profile
from tests.server.conftest import SettingsFactory
from tests.server.support import BAD, Cli, Packs, arrays, close, inputs_for, serving

TINY = inputs_for("tiny")
SEARCHED = ["async-md", "2s-md"]
Save = Callable[..., Path]


@pytest.fixture
def repository(packs: Packs, tmp_path: Path) -> Path:
    """A copy of the packs, which tests may give profiles."""
    return Path(copytree(packs.repository, tmp_path / "packs"))


@pytest.fixture
def profiled(repository: Path) -> Save:
    """Writes a profile of a pack, measured here or elsewhere, and returns the repository."""

    def save(name: str = "tiny", **elsewhere: object) -> Path:
        pack = open_pack(repository / name)
        machine = plain(this_machine(pack.weights_path, CpuDevice(1)))
        created = replace(
            profile(Program.as_compiled(pack)),
            manifest=manifest_checksum(pack),
            machine=read_record(Machine, {**machine, **elsewhere}),
        )
        save_profile(created, pack)
        return repository

    return save


@pytest.mark.parametrize("name", thinned(ARCHITECTURES, 3))
async def test_every_architecture_serves(
    settings: SettingsFactory, packs: Packs, profiled: Save, name: str
) -> None:
    repository = profiled()
    changes = {"repository": repository, "architecture": name, "models_budget": 8 << 20}
    async with serving(settings(models=("tiny",), **changes)) as service:
        for _ in range(2):
            answer = arrays(await service.infer("tiny", TINY))
            close(answer, packs.expected("tiny", TINY))
        found = (await service.client.get("/v2/models/tiny")).json()["parameters"]
        assert found["architecture"] == name
        assert found["predicted_ms"] > 0
        assert found["bound_ms"] is None
        staging = await service.metric("layerstream_memory_bytes", model="tiny", kind="staging")
        assert (staging != 0) == ARCHITECTURES[name].copies
        predicted = await service.metric("layerstream_predicted_seconds", model="tiny")
        assert predicted == pytest.approx(found["predicted_ms"] / 1e3)
        assert await service.metric("layerstream_bound_seconds", model="tiny") is None


@pytest.mark.parametrize("name", SEARCHED)
async def test_searched_architectures_need_a_profile(settings: SettingsFactory, name: str) -> None:
    with pytest.raises(StartupError, match="layerstream profile"):
        async with serving(settings(architecture=name)):
            pass


async def test_a_model_without_a_profile_is_said_to_have_none(
    settings: SettingsFactory, profiled: Save, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    repository = profiled("tiny")
    async with serving(settings(repository=repository, models=("tiny", "pair"))):
        (said,) = (line for line in caplog.messages if "has no profile" in line)
    assert f"`layerstream profile {repository / 'pair' / '1'}`" in said


@pytest.mark.parametrize("elsewhere", [{"cpu": "another"}, {"threads": 7}])
async def test_a_foreign_profile_is_a_warning(
    settings: SettingsFactory,
    profiled: Save,
    caplog: pytest.LogCaptureFixture,
    elsewhere: dict[str, object],
) -> None:
    repository = profiled(**elsewhere)
    with caplog.at_level(logging.WARNING):
        async with serving(settings(repository=repository)) as service:
            parameters = (await service.client.get("/v2/models/tiny")).json()["parameters"]
            assert (await service.infer("tiny", TINY)).status_code == 200
    (warning,) = (item.getMessage() for item in caplog.records if "profile" in item.getMessage())
    assert str(*elsewhere.values()) in warning
    assert "layerstream profile" in warning
    assert parameters["predicted_ms"] is None


async def test_a_profile_of_another_priority_plans_and_bounds_nothing(
    settings: SettingsFactory, profiled: Save, caplog: pytest.LogCaptureFixture
) -> None:
    """Measured as root, served by a unit that may not lower its nice level."""
    here = reader_priority()
    repository = profiled(reader_priority="slice" if here == "nice" else "nice")
    async with serving(settings(repository=repository)) as service:
        parameters = (await service.client.get("/v2/models/tiny")).json()["parameters"]
        assert await service.metric("layerstream_bound_seconds", model="tiny") is None
    (warning,) = (item.getMessage() for item in caplog.records if "profile" in item.getMessage())
    assert f"this machine has {here}" in warning
    assert parameters["predicted_ms"] > 0
    assert parameters["bound_ms"] is None


@pytest.mark.parametrize("text", ["", '{"format_version": 1}'])
async def test_a_damaged_profile_is_a_warning(
    settings: SettingsFactory, profiled: Save, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    repository = profiled()
    (repository / "tiny" / "1" / "profile.json").write_text(text)
    async with serving(settings(repository=repository)) as service:
        assert (await service.infer("tiny", TINY)).status_code == 200
    assert "profile.json" in caplog.text


def test_run_gives_the_same_bytes(cli: Cli, profiled: Save, tmp_path: Path) -> None:
    pack = profiled() / "tiny"
    np.save(tmp_path / "x.npy", TINY["image"])
    outputs = {}
    for chosen in ("pre", "2s", "auto"):
        file = tmp_path / f"{chosen}.npz"
        result = cli(
            *("run", pack, "--input", tmp_path / "x.npy", "--output", file),
            *("--architecture", chosen, "--threads", 1, "--json"),
        )
        assert result.document["plan"]["architecture"] == chosen
        outputs[chosen] = dict(np.load(file))
    for key, array in outputs["pre"].items():
        for name, found in outputs.items():
            np.testing.assert_array_equal(found[key], array, err_msg=name)


@pytest.mark.parametrize("in_turns", [False, True])
async def test_a_service_uses_what_was_planned(
    cli: Cli, settings: SettingsFactory, profiled: Save, in_turns: bool
) -> None:
    """``plan`` takes its time, and a model that loads finds what it found; so twice the same."""
    profiled("pair")
    repository = profiled("tiny")
    activations = "shared" if in_turns else "own"
    budget, requests = 3 << 20, 2 << 20
    planned = cli(
        *("plan", repository / "pair", repository / "tiny", "--threads", 1, "--json"),
        *("--budget", f"{budget}B", "--request-memory", f"{requests}B"),
        *("--activations", activations),
    ).document
    assert planned["in_turns"] == in_turns
    assert [row["kept"] for row in planned["packs"]] == [True] * 2
    changes = {"budget": budget, "request_memory": requests, "activations": activations}
    async with serving(
        settings(repository=repository, models=("pair", "tiny"), **changes)
    ) as service:
        for row in planned["packs"]:
            fitted = service.inside.repository.models.find(row["model"]).fitted
            assert fitted is not None
            assert fitted.plan.total_bytes == row["total_bytes"]
            assert fitted.plan.memory["ring"] == row["ring_bytes"]
            assert [asdict(each) for each in fitted.plan.regions] == row["regions"]


def test_a_plan_says_whether_it_is_saved_and_measured(
    cli: Cli, packs: Packs, profiled: Save
) -> None:
    repository = profiled("tiny")
    in_the_way = find_pack(repository / "pair") / "plans.json"
    in_the_way.unlink(missing_ok=True)
    in_the_way.mkdir()  # nothing can be kept there
    for name, options, kept in (
        ("tiny", (), True),
        ("pair", (), False),
        ("tiny", ("--architecture", "2s"), False),
    ):
        arguments = ("plan", repository / name, "--budget", "64MiB", "--threads", 1, *options)
        (row,) = cli(*arguments, "--json").document["packs"]
        assert (row["kept"], row["measured"]) == (kept, False)
    pack = open_pack(repository / "tiny")
    device = CpuDevice(1)
    program, existing = prepared(pack, device)
    assert existing is not None
    plan = fit(program, ARCHITECTURES["auto"], Wanted(total_bytes=64 << 20), existing).plan
    save_profile(existing.with_plans((measured(plan, 1.5),)), pack)
    arguments = ("plan", repository / "tiny", "--budget", "64MiB", "--threads", 1, "--json")
    (row,) = cli(*arguments).document["packs"]
    assert row["measured"]
    assert row["total_bytes"] == plan.total_bytes


def test_kept_plans_that_cannot_be_trusted_are_named(
    cli: Cli, profiled: Save, caplog: pytest.LogCaptureFixture
) -> None:
    folder = profiled("tiny") / "tiny" / "1"
    arguments = ("plan", folder, "--budget", "64MiB", "--threads", 1, "--json")
    first = cli(*arguments)
    file = folder / "plans.json"
    text = file.read_text("utf-8")
    changes = {
        "another version": text.replace('"planner":', '"planner":9'),
        "edited": text.replace('"total_bytes":', '"total_bytes":1'),
        "not json": text[:-40],
    }
    for changed in changes.values():
        assert changed != text
        file.write_text(changed, "utf-8")
        assert cli(*arguments).document == first.document
        (line,) = caplog.messages
        assert line.startswith(f"{file}: ignored")
        assert len(line) < len(str(file)) + 100
        caplog.clear()
    assert cli(*arguments).document == first.document
    assert not caplog.messages


def test_a_budget_is_one_story(cli: Cli, profiled: Save, tmp_path: Path) -> None:
    """``run`` sets aside what ``plan`` and a service do, though its one request holds less."""
    pack = profiled("tiny") / "tiny"
    np.save(tmp_path / "x.npy", TINY["image"])
    words = ("run", pack, "--input", tmp_path / "x.npy", "--threads", 1)
    ran = cli(
        *(*words, "--budget", "2500KiB", "--repeat", 1, "--output", tmp_path / "y.npy", "--json"),
    ).document["plan"]
    (planned,) = cli("plan", pack, "--budget", "2500KiB", "--threads", 1, "--json").document[
        "packs"
    ]
    manifest = open_pack(pack).manifest
    assert ran["request_bytes"] == sum(port.n_bytes for port in manifest.inputs)
    assert ran["total_bytes"] == planned["total_bytes"] + ran["request_bytes"]
    for part in ("weight", "arena", "scratch", "session", "object"):
        assert ran[f"{part}_bytes"] == planned[f"{part}_bytes"]
    cli(*words, "--budget", "900KiB").refuses(BAD, "requests take", "a budget of")


def test_run_within_limits(cli: Cli, packs: Packs, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", TINY["image"])
    arguments = ("run", packs.repository / "tiny", "--input", tmp_path / "x.npy")

    def plan(*options: object) -> dict[str, Any]:
        found: dict[str, Any] = cli(*arguments, *options, "--json").document["plan"]
        return found

    weights = packs.weights("tiny")
    half = plan("--weights", "50%")
    assert half["architecture"] == "auto"
    assert weights * 0.3 < half["weight_bytes"] <= weights / 2
    assert plan("--weights", "300KiB")["weight_bytes"] <= 300 << 10
    assert plan("--architecture", "2s-md", "--ring", "256KiB")["ring_bytes"] == 256 << 10
    for options, words in (
        (("--weights", "0%"), ("--weights",)),
        (("--weights", "-5MiB"), ("--weights",)),
        (("--weights", "1%"), ("bytes", "allow as much, or take another architecture")),
        (("--weights", "50%", "--architecture", "pre"), ("pre", "bytes")),
        (("--ring", "1KiB"), ("1024", "largest chunk", "give as much")),
        (("--ring", "1MiB", "--weights", "5%"), ("--ring", "--weights")),
        (("--architecture", "2s-md"), ("layerstream profile", "--ring")),
        (("--architecture", "3s"), ("'3s'", *ARCHITECTURES)),
    ):
        cli(*arguments, *options).refuses(BAD, *words)


def test_a_limit_holds_whatever_the_architecture(packs: Packs) -> None:
    program = Program.as_compiled(open_pack(packs.repository / "tiny"))
    for architecture in ARCHITECTURES.values():
        for existing in (None, profile(program)):
            for percent in (10, 50, 250):
                limit = program.weight_bytes * percent // 100
                try:
                    fitted = fit(program, architecture, Wanted(weight_bytes=limit), existing)
                except PlanError as exc:
                    assert str(limit) in str(exc) or "profile" in str(exc)  # noqa: PT017
                    continue
                assert fitted.plan.weight_bytes <= limit
                assert (fitted.predicted_seconds is None) == (existing is None)
