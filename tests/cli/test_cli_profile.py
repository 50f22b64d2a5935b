"""``layerstream profile``, ``simulate`` and ``plan``: with a profile, without, and with what cannot be."""

import errno
import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.packs.pack import Pack, open_pack
from models.records import read_json
from models.runtime.sessions import use_threads
from models.sizes import format_least
from pipeline.devices.cpu import CpuDevice
from pipeline.energy import find_meter
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import Wanted
from pipeline.measuring import plan_races, profiling, races
from pipeline.planning.plan import Plan
from pipeline.planning.smallest import smallest_plan
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile
from pipeline.profiles.profile_file import FILE, manifest_checksum, prepared, save_profile
from pipeline.profiles.times import plan_key
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.made_profiles import profile
from tests.server.support import BAD, Cli, Packs, picture


@pytest.fixture
def bare(pack_folder: Path) -> Pack:
    """A pack without a profile."""
    return open_pack(pack_folder)


@pytest.fixture
def profiled(bare: Pack) -> Pack:
    """A pack with a profile of this machine, in which nothing was measured."""
    machine = this_machine(bare.weights_path, CpuDevice())
    created = profile(Program.as_compiled(bare))
    save_profile(replace(created, manifest=manifest_checksum(bare), machine=machine), bare)
    return bare


def edit(pack: Pack, *path: str, value: object) -> None:
    document: dict[str, Any] = json.loads((pack.folder / FILE).read_bytes())
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (pack.folder / FILE).write_text(json.dumps(document))


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Races and sweeps take no longer than they must, and what they say is believed."""
    for name in ("_MIN_SECONDS", "_MAX_SECONDS"):
        monkeypatch.setattr(plan_races, name, 0.02)
    monkeypatch.setattr(races, "_UNSURE", 1e9)
    monkeypatch.setattr(races, "_ROUNDS", 1)
    monkeypatch.setattr(profiling, "_ANSWERED_SECONDS", 0.0)


@pytest.mark.usefixtures("brief")
def test_profile_writes_what_simulate_and_plan_read(cli: Cli, bare: Pack) -> None:
    summary = cli("profile", bare.folder, "--iterations", 1, "--json").document
    assert summary["file"] == str(bare.folder / FILE)
    assert summary["machine"]["threads"] == use_threads()
    assert {item["depth"] for item in summary["reads"]} == {1, 2, 4}
    assert open_pack(bare.folder).manifest == bare.manifest
    rows = cli("simulate", bare.folder, "--json").document["rows"]
    assert [row["architecture"] for row in rows] == list(ARCHITECTURES)
    assert all(row["delay_ms"] > 0 and row["bound_ms"] is None for row in rows)
    assert len(summary["plans"]) == 5
    budgets = [row["budget_bytes"] for row in summary["plans"]]
    assert budgets == sorted(set(budgets))
    for row in summary["plans"]:
        assert row["kept"]
        assert row["total_bytes"] <= row["budget_bytes"]
        assert 0 < row["spread"][0] <= row["times"] <= row["spread"][1]
        assert row["candidates"] >= 1
    assert summary["resident_ms"] > 0
    assert summary["outside_ms"] >= 0
    # Each budget has a plan that was measured, and no larger one a slower one.
    times = {plan.key: plan.ratio for plan in saved(bare).plans}
    plans = [fitted(bare, n_bytes) for n_bytes in budgets]
    measured = [times[plan_key(plan)] for plan in plans if plan_key(plan) in times]
    assert measured == sorted(measured, reverse=True)
    assert plan_key(plans[0]) in times


@pytest.mark.usefixtures("brief")
def test_a_profile_of_budgets_keeps_the_plans_of_earlier_ones(cli: Cli, bare: Pack) -> None:
    minimum = smallest_plan(Program.as_compiled(bare), ARCHITECTURES["auto"]).total_bytes
    sizes = [2 * minimum, 3 * minimum]
    first = cli("profile", bare.folder, "--budget", f"{sizes[0]}B", "--json").document
    assert [row["budget_bytes"] for row in first["plans"]] == sizes[:1]
    before = {plan.key: plan for plan in saved(bare).plans}
    assert len(before) >= first["plans"][0]["candidates"]
    both = ("--budget", f"{sizes[1]}B", "--budget", f"{sizes[0]}B")
    second = cli("profile", bare.folder, *both, "--json").document
    assert [row["budget_bytes"] for row in second["plans"]] == sizes
    after = {plan.key: plan for plan in saved(bare).plans}
    assert before.keys() <= after.keys()
    # Without budgets all is measured anew.
    cli("profile", bare.folder, "--iterations", 1)
    assert len(saved(bare).plans) > 0


@pytest.mark.usefixtures("brief")
def test_limits_of_another_machine_are_discarded(cli: Cli, bare: Pack) -> None:
    budget = ("--budget", "64MiB")
    cli("profile", bare.folder, *budget)
    cli("profile", bare.folder, *budget, "--bound", "--runs", 2)
    assert len(saved(bare).limits) == 1
    cli("profile", bare.folder, *budget)
    assert len(saved(bare).limits) == 1
    edit(bare, "machine", "kernel", value="Linux 2.4")
    cli("profile", bare.folder, *budget)
    assert saved(bare).limits == {}


@pytest.mark.usefixtures("brief")
def test_a_machine_that_is_too_uneven_keeps_nothing_and_says_so(
    cli: Cli, bare: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(races, "_UNSURE", -1.0)
    result = cli("profile", bare.folder, "--budget", "64MiB")
    assert result.code == 0
    assert "too uneven to say which plan is best within 64.0 MiB" in result.out + result.err
    assert saved(bare).plans == ()


def test_a_budget_that_is_too_small_is_refused_before_measuring(
    cli: Cli, bare: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pipeline.measuring.profiling.profile_pack", lambda *_: pytest.fail("measured")
    )
    cli("profile", bare.folder, "--budget", "64MiB", "--budget", "1B").refuses(
        BAD, "required", "available 1 bytes"
    )
    assert not (bare.folder / FILE).exists()


def saved(pack: Pack) -> Profile:
    """Return the profile that lies beside ``pack``."""
    return read_json(Profile, (pack.folder / FILE).read_bytes())


def fitted(pack: Pack, n_bytes: int) -> Plan:
    """Return the plan within ``n_bytes`` by that profile."""
    program, profiled = prepared(pack, CpuDevice())
    return fit(program, ARCHITECTURES["auto"], Wanted(total_bytes=n_bytes), profiled).plan


@pytest.mark.usefixtures("brief")
def test_profile_says_in_a_table_what_it_measured(cli: Cli, bare: Pack) -> None:
    shown = cli("profile", bare.folder, "--iterations", 1)
    assert shown.code == 0
    assert all(
        word in shown.out
        for word in ("in flight", "GB/s", "times all memory", "with all memory a pass", FILE)
    )
    assert "{" not in shown.out
    assert not re.search(r"\d\.\d{4}", shown.out)


@pytest.mark.parametrize("options", [[], ["--bound"]])
def test_a_folder_that_takes_no_profile_is_refused_before_measuring(
    cli: Cli, profiled: Pack, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    """As on a file system that is read-only, which stops root, too."""

    def read_only(dir: Path) -> None:  # noqa: A002
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(dir))

    def measured(*_: object) -> None:
        pytest.fail("measured before it was known whether it can be kept")

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    monkeypatch.setattr("pipeline.measuring.profiling.profile_pack", measured)
    monkeypatch.setattr("pipeline.measuring.sweeps.measure_limits", measured)
    result = cli("profile", profiled.folder, *options)
    result.refuses(BAD, f"{profiled.folder}: a profile is written there: Read-only file system")


def test_a_measured_bound_is_what_plan_shows(cli: Cli, profiled: Pack) -> None:
    wanted = ("--architecture", "2s", "--budget", "64MiB")
    before = cli("plan", profiled.folder, *wanted, "--json").document
    made = cli("profile", profiled.folder, "--bound", *wanted, "--runs", 3, "--json").document
    after = cli("plan", profiled.folder, *wanted, "--json").document
    assert made["runs"] == 3
    assert after["bound_ms"] == pytest.approx(made["bound_ms"])
    assert before["bound_ms"] is None
    assert after["delay_ms"] == before["delay_ms"]
    assert after["weight_bytes"] == made["weight_bytes"]


def test_a_bound_needs_a_profile(cli: Cli, bare: Pack) -> None:
    cli("profile", bare.folder, "--bound").refuses(BAD, "no profile", "layerstream profile")


@pytest.mark.parametrize("option", [("--architecture", "2s"), ("--ring", "1MiB"), ("--runs", "3")])
def test_what_only_a_bound_is_of_is_not_ignored(
    cli: Cli, bare: Pack, option: tuple[str, str]
) -> None:
    cli("profile", bare.folder, *option).refuses(BAD, option[0], "--bound")


def test_simulate_needs_a_profile(cli: Cli, bare: Pack) -> None:
    cli("simulate", bare.folder).refuses(BAD, "no profile", f"layerstream profile {bare.folder}")


def test_simulate_writes_a_trace(cli: Cli, profiled: Pack, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    shown = cli("simulate", profiled.folder, "--architectures", "2s,async", "--trace", trace)
    assert shown.code == 0
    events = json.loads(trace.read_bytes())["traceEvents"]
    processes = {item["args"]["name"] for item in events if item["name"] == "process_name"}
    assert len(processes) == 2


def test_a_trace_that_cannot_be_written_is_named(cli: Cli, profiled: Pack, tmp_path: Path) -> None:
    missing = tmp_path / "none" / "trace.json"
    cli("simulate", profiled.folder, "--architectures", "pre", "--trace", missing).refuses(
        BAD, "none"
    )


def test_a_profile_of_another_machine_is_refused(cli: Cli, profiled: Pack) -> None:
    edit(profiled, "machine", "cpu", value="another processor")
    cli("simulate", profiled.folder).refuses(BAD, "measured on cpu another processor", "run `")


def test_memory_is_planned_without_a_profile(cli: Cli, bare: Pack) -> None:
    planned = cli("plan", bare.folder, "--budget", "64MiB", "--json").document
    assert planned["delay_ms"] is None
    assert planned["bound_ms"] is None
    (row,) = planned["packs"]
    assert "layerstream profile" in row["hint"]
    parts = (
        "weight_bytes",
        "arena_bytes",
        "scratch_bytes",
        "session_bytes",
        "object_bytes",
        "io_bytes",
    )
    assert planned["total_bytes"] == sum(planned[part] for part in parts) <= 64 << 20


def test_packs_share_the_budget(cli: Cli, profiled: Pack, tmp_path: Path) -> None:
    other = tmp_path / "other" / "1"
    shutil.copytree(profiled.folder, other)
    alone = cli("plan", profiled.folder, "--budget", "64MiB", "--json").document
    least = smallest_plan(Program.as_compiled(profiled), ARCHITECTURES["auto"]).total_bytes
    both = (profiled.folder, other)
    requests = 1 << 20
    budget = (f"--budget={2 * least + 4096 + requests}", f"--request-memory={requests}")
    together = cli("plan", *both, *budget, "--json").document
    assert together["request_bytes"] == requests
    assert together["total_bytes"] == sum(row["total_bytes"] for row in together["packs"])
    assert together["total_bytes"] <= 2 * least + 4096
    assert together["delay_ms"] == pytest.approx(sum(row["delay_ms"] for row in together["packs"]))
    assert alone["weight_bytes"] >= together["packs"][0]["weight_bytes"]
    less = (f"--budget={2 * least - 1 + requests}", f"--request-memory={requests}")
    enough = f"a budget of {format_least(2 * least + requests)} is enough for all models that can be served"
    cli("plan", *both, *less, "--activations", "own").refuses(BAD, "does not fit", "free", enough)
    assert cli("plan", *both, *less, "--json").document["in_turns"]


def test_explain_says_why(cli: Cli, profiled: Pack) -> None:
    shown = cli("plan", profiled.folder, "--budget", "64MiB", "--explain")
    assert "bottleneck" in shown.out or "kernels" in shown.out
    assert "launches\n" in shown.out
    assert "weights  " in shown.out
    document = cli("plan", profiled.folder, "--budget", "64MiB", "--explain", "--json").document
    ((plan,),) = document["plans"]
    assert plan["checksum"] in shown.out
    assert sum(plan["memory"].values()) == document["packs"][0]["total_bytes"]


def test_a_delay_is_reached_with_little_memory(cli: Cli, profiled: Pack) -> None:
    fastest = cli("plan", profiled.folder, "--budget", "64MiB", "--json").document
    target = fastest["delay_ms"] * 1.5
    planned = cli("plan", profiled.folder, "--delay", f"{target:.6f}ms", "--json").document
    assert planned["delay_ms"] <= target
    assert planned["weight_bytes"] <= fastest["weight_bytes"]


@pytest.mark.parametrize("budget", ["0", "-5", "-1MiB", "nan", "much", "", "1e400"])
def test_a_budget_that_is_none_is_refused(cli: Cli, profiled: Pack, budget: str) -> None:
    cli("plan", profiled.folder, f"--budget={budget}").refuses(BAD, "--budget")


@pytest.mark.parametrize("weights", ["0%", "101%", "-3%", "nan%", "%", "some"])
def test_a_part_of_the_weights_that_is_none_is_refused(
    cli: Cli, profiled: Pack, weights: str
) -> None:
    cli("plan", profiled.folder, f"--weights={weights}").refuses(BAD, "--weights")


@pytest.mark.parametrize("delay", ["0ms", "-5ms", "5", "soon", "nan s"])
def test_a_delay_that_is_none_is_refused(cli: Cli, profiled: Pack, delay: str) -> None:
    cli("plan", profiled.folder, f"--delay={delay}").refuses(BAD, "--delay")


def test_other_bad_input_is_named(cli: Cli, profiled: Pack) -> None:
    folder = profiled.folder
    largest = profiled.manifest.largest_chunk_bytes
    cli("plan", folder).refuses(BAD, "--budget")
    tight = cli("plan", folder, "--budget=64MiB", "--request-memory=300KiB")
    assert tight.code == 0
    assert "not served so" in tight.err
    assert "one request to it takes" in tight.err
    assert "have 300.0 KiB" in tight.err
    cli("plan", folder, "--budget", "1B").refuses(BAD, "requests take", "free are 1 B")
    small = cli("plan", folder, "--ring", "4096B", "--architecture", "2s")
    small.refuses(BAD, "4096", str(largest), "largest chunk")
    cli("plan", folder, "--budget", "1GiB", "--architecture", "9s").refuses(BAD, "'9s'", "2s-md")
    cli("simulate", folder, "--architectures", "pre,9s").refuses(BAD, "'9s'", "2s-md")
    cli("plan", folder / "none", "--budget", "1GiB").refuses(BAD, "no such folder")
    cli("plan", folder, "--weights", "1B").refuses(BAD, "1 bytes", "the least")
    cli("simulate", folder, "--weights", "1B").refuses(BAD, "1 bytes", "the least")
    cli("profile", folder, "--iterations", 0).refuses(BAD, "--iterations")


def test_a_delay_needs_a_profile(cli: Cli, bare: Pack) -> None:
    cli("plan", bare.folder, "--delay", "1s").refuses(BAD, "no profile", "layerstream profile")


# Energy in what ``run`` and ``bench pipeline`` print, on fake trees of sysfs files.

NOTHING = "not available here: no INA3221 power rails, no RAPL packages"


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the commands find instead of /sys."""
    monkeypatch.setattr("cli.run.find_meter", lambda: find_meter(tmp_path))
    monkeypatch.setattr("cli.bench.find_meter", lambda: find_meter(tmp_path))
    return tmp_path


def make_rail(root: Path) -> None:
    folder = root / "bus/i2c/devices/1-0040/hwmon/hwmon3"
    folder.mkdir(parents=True)
    files = {"name": "ina3221", "in1_label": "[GPU]", "in1_input": "5000", "curr1_input": "2000"}
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n", encoding="ascii")


def test_run(cli: Cli, packs: Packs, sysfs: Path) -> None:
    image = sysfs / "cat.png"
    image.write_bytes(picture())
    arguments = ("run", packs.repository / "tiny", "--image", image)
    document = cli(*arguments, "--json").document
    assert (document["energy"], document["energy_joules"]) == (NOTHING, None)
    assert "energy" not in cli(*arguments).out
    make_rail(sysfs)
    shown = cli(*arguments).out
    assert re.fullmatch(r"energy: ina3221: \[GPU\]; \d+\.\d{3} J", shown.splitlines()[-1])
    document = cli(*arguments, "--json").document
    assert document["energy"] == "ina3221: [GPU]"
    # 10 watts, for at least as long as the sweep took.
    assert document["energy_joules"] >= document["delay_ms"] / 100


def test_bench_pipeline(cli: Cli, packs: Packs, sysfs: Path) -> None:
    arguments = ("bench", "pipeline", packs.repository / "tiny", "--iterations", 2, "--no-peers")
    shown = cli(*arguments).out
    assert shown.splitlines()[-1] == f"energy: {NOTHING}"
    make_rail(sysfs)
    shown = cli(*arguments).out
    assert shown.splitlines()[-1].startswith("energy: ina3221: [GPU]; pre ")
    document = cli(*arguments, "--json").document
    assert document["energy"] == "ina3221: [GPU]"
    for row in document["rows"]:
        joules, delay = row["energy_joules"], row["delay_ms"]
        assert joules["median"] >= delay["median"] / 100
        assert joules["max"] >= delay["max"] / 100
