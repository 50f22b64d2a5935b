"""``layerstream list``: what is in a repository, and what a budget would serve, as the server decides."""

import json
import re
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from cli.printing.sentences import typed
from models.packs.pack import open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import Wanted
from pipeline.profiles.profile_file import prepared, save_profile
from pipeline.schedule.architectures import ARCHITECTURES
from tests.cli.test_cli_tables import save
from tests.pipeline.made_profiles import limits
from tests.server.conftest import SettingsFactory
from tests.server.support import BAD, REQUEST_MEMORY, Cli, Packs, serving

ALL = ["pair", "tiny", "twin"]


@pytest.fixture
def repository(packs: Packs, tmp_path: Path) -> Path:
    return Path(copytree(packs.repository, tmp_path / "packs"))


def test_models_with_their_versions_and_budgets(cli: Cli, packs: Packs, repository: Path) -> None:
    copytree(repository / "tiny" / "1", repository / "tiny" / "2")
    (repository / "notes").mkdir()
    (repository / ".hidden" / "1").mkdir(parents=True)
    document = cli("list", repository, "--json").document
    rows = {row["model"]: row for row in document["models"]}
    assert list(rows) == ALL
    assert [rows[name]["versions"] for name in ALL] == [["1"], ["1", "2"], ["1"]]
    for name, row in rows.items():
        assert row["weight_bytes"] == packs.weights(name)
        assert (row["profile"], row["error"]) == (False, "")
        assert "served" not in row
        alone = cli("inspect", repository / name, "--json").document["smallest_budget_bytes"]
        assert row["smallest_budget_bytes"] == alone


def test_a_pack_that_cannot_be_read_is_a_row_with_the_reason(cli: Cli, repository: Path) -> None:
    (repository / "tiny" / "1" / "weights.bin").unlink()
    (repository / "twin" / "1" / "manifest.json").write_text("{}")
    for options in ((), ("--budget", "64MiB")):
        document = cli("list", repository, *options, "--json").document
        errors = {row["model"]: row["error"] for row in document["models"]}
        assert errors["pair"] == ""
        assert "weights.bin" in errors["tiny"]
        assert "manifest.json" in errors["twin"]
        shown = cli("list", repository, *options)
        assert shown.code == 0
        for name in ("tiny", "twin"):
            assert f"{name}: {errors[name]}" in shown.out


def test_a_profile_of_elsewhere_is_named(cli: Cli, repository: Path) -> None:
    (repository / "pair" / "1" / "profile.json").write_text("{}")
    (row, *_) = cli("list", repository, "--json").document["models"]
    assert not row["profile"]
    assert "profile.json" in row["profile_error"]
    assert row["profile_error"] in cli("list", repository).out


@pytest.mark.parametrize(
    ("extra", "broken"),
    [
        *((extra, False) for extra in (-1, 0)),
        (1 << 20, True),
        *(
            pytest.param(extra, broken, marks=pytest.mark.slow)
            for extra, broken in (
                *((extra, False) for extra in (-200_000, 1 << 16, 1 << 20, 64 << 20)),
                *((extra, True) for extra in (-200_000, -1, 0, 1 << 16, 64 << 20)),
            )
        ),
    ],
)
async def test_it_says_what_the_server_does(
    cli: Cli, settings: SettingsFactory, repository: Path, extra: int, broken: bool
) -> None:
    """From a budget that is short of all models up; ``extra``: bytes beside what all need."""
    if broken:
        (repository / "pair" / "1" / "manifest.json").write_text("{}")
    needed = cli("list", repository, "--json").document["all_bytes"]
    budget = needed + extra
    command = ("list", repository, "--budget", f"{budget}B", "--threads", 1)
    document = cli(*command, "--json").document
    changes = {"budget": budget, "request_memory": None, "models": (), "repository": repository}
    async with serving(settings(**changes)) as service:
        entries = {entry.name: entry for entry in service.inside.repository.entries()}
        assert service.inside.budget.request_bytes == document["request_bytes"]
        for row in document["models"]:
            entry = entries[row["model"]]
            assert row["served"] == entry.serves
            held = entry.fitted.plan.total_bytes if entry.fitted else None
            assert row["memory_bytes"] == held
            assert entry.serves or row["reason"] == entry.reason
    assert all(row["served"] or row["error"] for row in document["models"]) == (extra >= 0)


async def test_it_takes_turns_where_the_server_does(
    cli: Cli, settings: SettingsFactory, packs: Packs
) -> None:
    """Two of three fit, at once the first and the last: but the second one comes before that one."""
    names = ("tiny", "twin", "pair")
    at_once = packs.smallest("tiny") + packs.smallest("pair")
    budget = REQUEST_MEMORY + 2 * packs.smallest("tiny") - (16 << 10)
    assert at_once < budget - REQUEST_MEMORY
    options = ("--models", ",".join(names), "--request-memory", f"{REQUEST_MEMORY}B")
    command = ("list", packs.repository, *options, "--budget", f"{budget}B", "--threads", 1)
    rows = cli(*command, "--json").document["models"]
    async with serving(settings(budget=budget, models=names)) as service:
        entries = {entry.name: entry for entry in service.inside.repository.entries()}
        for row in rows:
            assert row["served"] == entries[row["model"]].serves
            assert row["served"] or row["reason"] == entries[row["model"]].reason
    assert [row["served"] for row in rows] == [True, True, False]


async def test_it_reads_pins_as_the_server_does(
    cli: Cli, settings: SettingsFactory, repository: Path
) -> None:
    """Of the command and of a configuration; what is pinned needs more, and is there first."""
    config = 'parameters { key: "pin" value { string_value: "" } }'
    (repository / "pair" / "config.pbtxt").write_text(config)
    unpinned = cli("list", repository, "--models", "tiny,twin", "--json").document["all_bytes"]
    pinned = ("list", repository, "--pin", "twin", "--threads", 1)
    needed = cli(*pinned, "--json").document["all_bytes"]
    assert needed > unpinned
    assert f"--pin twin --budget {typed(needed)}" in cli(*pinned).out
    document = cli(*pinned, "--budget", f"{needed}B", "--json").document
    changes = {"request_memory": None, "models": (), "repository": repository, "pin": "twin"}
    async with serving(settings(budget=needed, **changes)) as service:
        for entry in service.inside.repository.entries():
            (row,) = (row for row in document["models"] if row["model"] == entry.name)
            assert entry.fitted is not None
            assert row["memory_bytes"] == entry.fitted.plan.total_bytes
    short = cli(*pinned, "--budget", f"{needed - 4096}B", "--json").document
    assert not all(row["served"] for row in short["models"])
    cli("list", repository, "--pin", "twin,twin").refuses(BAD, "named twice")


def test_it_counts_the_models_that_shall_be_served(cli: Cli, repository: Path) -> None:
    """As ``serve --models`` does: in this order, and the others take nothing."""
    all_bytes = cli("list", repository, "--json").document["all_bytes"]
    found = cli("list", repository, "--models", "twin,pair", "--json").document
    assert [row["model"] for row in found["models"]] == ["twin", "pair"]
    assert found["all_bytes"] < all_bytes
    shown = cli("list", repository, "--models", "pair", "--models", "twin").out
    assert f"--models pair,twin --budget {typed(found['all_bytes'])}" in shown
    cli("list", repository, "--models", "nobody").refuses(BAD, "'nobody'", "not in the repository")


def test_a_profile_of_nearly_here_gives_no_bound(cli: Cli, repository: Path) -> None:
    folder = repository / "pair" / "1"
    save(open_pack(folder))
    program, profile = prepared(open_pack(folder), CpuDevice(1))
    assert profile is not None
    best = fit(program, ARCHITECTURES["auto"], Wanted(total_bytes=64 << 20), profile).plan
    save_profile(profile.with_limits(best, limits(program, best, profile)), program.pack)
    file = folder / "profile.json"
    document = json.loads(file.read_text())
    for kernel, cell, exact in (
        (document["machine"]["kernel"], "yes", True),
        ("of long ago", "no bound", False),
    ):
        document["machine"]["kernel"] = kernel
        file.write_text(json.dumps(document))
        shown = cli("list", repository, "--threads", 1)
        assert re.search(rf"^pair .*{cell}$", shown.out, re.MULTILINE)
        (row, *_) = cli("list", repository, "--threads", 1, "--json").document["models"]
        assert (row["profile"], row["profile_exact"]) == (True, exact)
        plan = cli("plan", folder, "--budget", "64MiB", "--threads", 1, "--json").document
        assert (plan["bound_ms"] is not None) == exact


async def test_a_profile_that_lacks_a_piece_is_as_none(
    cli: Cli, settings: SettingsFactory, repository: Path
) -> None:
    folder = repository / "pair" / "1"
    save(open_pack(folder))
    document = json.loads((folder / "profile.json").read_text())
    document["pieces"].pop()
    (folder / "profile.json").write_text(json.dumps(document))
    command = ("list", repository, "--budget", "64MiB", "--threads", 1)
    rows = cli(*command, "--json").document["models"]
    assert [row["served"] for row in rows] == [True] * 3
    assert not rows[0]["profile"]
    changes = {"budget": 64 << 20, "request_memory": None, "models": (), "repository": repository}
    async with serving(settings(**changes)) as service:
        entries = {entry.name: entry for entry in service.inside.repository.entries()}
        assert all(entries[row["model"]].serves for row in rows)
        fitted = entries["pair"].fitted
        assert fitted is not None
        assert fitted.prediction is None


def test_what_is_missing_is_enough(cli: Cli, repository: Path) -> None:
    """A budget larger by what is missing serves the model, where it is the only one that does not fit."""
    rmtree(repository / "twin")
    needed = cli("list", repository, "--json").document["all_bytes"]
    shown = cli("list", repository, "--budget", f"{needed - 1000}B")
    assert re.search(
        r"a budget of [\d.]+ MiB is enough for all models that can be served", shown.out
    )
    least = typed(needed)
    assert f"--budget {least}" in shown.out
    rows = cli("list", repository, "--budget", least, "--json").document["models"]
    assert all(row["served"] for row in rows)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (".", "packs/other"),
        ("packs", "other/1"),
        ("packs/other", "."),
        ("packs/other/1", "../../other"),
    ],
)
def test_the_command_that_inspect_suggests_finds_the_pack(
    cli: Cli, repository: Path, monkeypatch: pytest.MonkeyPatch, place: str, said: str
) -> None:
    """Wherever it is called from, and whatever the pack was called when it was compiled."""
    (repository / "tiny").rename(repository / "other")
    monkeypatch.chdir(repository.parent / place)
    words = cli("inspect", said).out.rpartition("layerstream serve ")[2].split()
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options["--models"] == "other"
    rows = cli("list", options["--repository"], "--models", "other", "--json").document["models"]
    assert not rows[0]["error"]


def test_refusals(cli: Cli, repository: Path, tmp_path: Path) -> None:
    cli("list", tmp_path / "none").refuses(BAD, "none", "no such folder")
    cli("list", repository, "--budget", "16").refuses(BAD, "--budget", "16MiB")
    refused = cli("list", repository, "--budget", "1KiB")
    refused.refuses(BAD, "requests take", "1.0 KiB")
    enough = refused.err.rpartition("a budget of ")[2].partition(" is enough")[0]
    rows = cli("list", repository, "--budget", enough.replace(" ", ""), "--json").document
    assert not any(row["error"] for row in rows["models"])
    (tmp_path / "empty").mkdir()
    assert cli("list", tmp_path / "empty").out == f"{tmp_path / 'empty'}: no models in it\n"
    for inside in (repository / "tiny", repository / "tiny" / "1"):
        assert cli("list", inside).out.endswith(f"its repository is {repository}\n")
