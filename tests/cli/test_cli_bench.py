"""``layerstream bench``: rows, plots and traces, and what it refuses."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from cli.benching import named
from models.errors import PackError
from models.packs.pack import open_pack
from pipeline.budget.request_needs import Need, pool_bytes
from pipeline.peers import ONNXRUNTIME, OPENVINO
from tests.examples import over
from tests.server.support import BAD, Cli, Packs, inputs_for

ROW = {
    "total_bytes",
    *("architecture", "weight_bytes", "arena_bytes", "scratch_bytes", "weight_percent"),
    *("equation", "equation_bytes", "equation_layer_bytes", "predicted_ms", "bound_ms"),
    *("delay_ms", "ratio_to_pre", "stall_ms", "read_bytes", "cpu_seconds", "energy_joules"),
    *("max_relative_error", "equal_to_pre"),
}
STREAMED = ("seq", "sync", "async", "2s")


@pytest.fixture
def tiny(packs: Packs) -> Path:
    return packs.repository / "tiny"


def test_rows(cli: Cli, packs: Packs, tiny: Path) -> None:
    names = ",".join(STREAMED)
    result = cli("bench", "pipeline", tiny, "--iterations", 3, "--architectures", names, "--json")
    document = result.document
    assert (document["model"], document["resolution"]) == ("tiny", 16)
    rows = {row["architecture"]: row for row in document["rows"]}
    there = [ONNXRUNTIME, *([OPENVINO] if find_spec("openvino") else [])]
    assert list(rows) == ["pre", *STREAMED, *there]
    assert [OPENVINO in note for note in document["notes"]] == [True] * (2 - len(there))
    for row in rows.values():
        assert set(row) == ROW
        delay = row["delay_ms"]
        assert 0 < delay["median"] <= delay["p95"] <= delay["max"]
        assert row["stall_ms"] >= 0
        assert row["cpu_seconds"] > 0
        assert row["max_relative_error"] <= 1e-5
    assert rows["pre"]["ratio_to_pre"] == 1
    assert rows["pre"]["equation_layer_bytes"] == packs.weights("tiny")
    assert rows["pre"]["weight_bytes"] >= packs.weights("tiny")
    assert rows["pre"]["read_bytes"] == rows[ONNXRUNTIME]["read_bytes"] == 0
    for name in STREAMED:
        assert rows[name]["equal_to_pre"]
        assert rows[name]["read_bytes"] > packs.weights("tiny") * 0.9
        resident = rows[name]["weight_bytes"] - rows[name]["equation_bytes"]
        assert 0 <= resident < packs.weights("tiny") / 10
    equations = [rows[name]["equation_bytes"] / rows["2s"]["equation_bytes"] for name in STREAMED]
    assert equations == [2, 4, 2, 1]


@pytest.mark.slow
def test_auto_within_a_budget_of_all_memory(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    own = shutil.copytree(tiny, tmp_path / "tiny")  # the profile is written beside it
    options = ("--iterations", 1, "--no-peers", "--budget", "900KiB", "--json")
    document = cli("bench", "pipeline", own, "--architectures", "2s", *options).document
    assert document["budget_bytes"] == 900 << 10
    rows = {row["architecture"]: row for row in document["rows"]}
    assert list(rows) == ["pre", "2s", "auto"]
    auto = rows["auto"]
    assert auto["total_bytes"] < 900 << 10 < rows["pre"]["total_bytes"]
    assert auto["predicted_ms"] > 0
    assert auto["equal_to_pre"]
    # As run again and again, in what requests leave: the same plan. (A single run takes the first
    # plan that fits, since a search would take longer than it saves.)
    np.save(tmp_path / "x.npy", inputs_for("tiny")["image"])
    run = ("run", own, "--input", tmp_path / "x.npy", "--output", tmp_path / "y.npy")
    budget = (900 << 10) + pool_bytes(3 << 20, [Need.of(open_pack(own).manifest)])
    ran = cli(*run, "--budget", f"{budget}B", "--repeat", 1, "--json").document["plan"]
    assert ran["total_bytes"] - ran["request_bytes"] == auto["total_bytes"]
    small = ("bench", "pipeline", own, "--no-peers", "--budget")
    cli(*small, "20KiB").refuses(BAD, "auto: tiny", "required", "available", "excess")
    cli(*small, "1KiB").refuses(BAD, "tensors of one request")
    cli(*small, "1MiB", "--weights", "5%").refuses(BAD, "--weights", "--budget")


def test_for_people(cli: Cli, tiny: Path) -> None:
    result = cli(
        "bench", "pipeline", tiny, "--iterations", 1, "--architectures", "2s", "--no-peers"
    )
    assert result.code == 0
    assert [name in result.out for name in ("pre", "seq", "2s", ONNXRUNTIME)] == [
        *(True, False, True, False)
    ]


@pytest.mark.slow
def test_tuned_ones_are_profiled_planned_and_plotted(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    own = shutil.copytree(tiny, tmp_path / "tiny")  # the profile is written beside it
    result = cli(
        *("bench", "pipeline", own, "--iterations", 1, "--no-peers", "--json"),
        *("--architectures", "2s-md,async-md,auto@50%,auto@100%", "--plot", tmp_path / "plots"),
    )
    assert "measuring a short one" in result.err
    document = result.document
    rows = {row["architecture"]: row for row in document["rows"]}
    assert list(rows) == ["pre", "2s-md", "async-md", "auto@50%", "auto@100%"]
    assert all(row["predicted_ms"] > 0 and row["equal_to_pre"] for row in rows.values())
    assert rows["auto@50%"]["weight_percent"] <= 50
    assert rows["2s-md"]["equation"] is None
    assert set(document["searches"]) == {"2s-md", "async-md"}
    for label, search in document["searches"].items():
        least = min(point["delay_seconds"] for point in search["curve"])
        assert search["chosen"] in search["curve"]
        assert search["chosen"]["delay_seconds"] <= 1.01 * least
        assert search["chosen"]["weight_bytes"] == rows[label]["weight_bytes"]
    plots = {path.name: path.read_text("utf-8") for path in (tmp_path / "plots").iterdir()}
    assert set(plots) == {"tiny-16-memory-delay.svg", "tiny-16-search.svg"}
    for label in rows:
        assert label in plots["tiny-16-memory-delay.svg"]
    again = cli(
        *("bench", "pipeline", own, "--iterations", 1, "--architectures", "2s-md", "--no-peers")
    )
    assert "measuring a short one" not in again.err


def test_a_trace_has_a_row_for_each_stage(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    arguments = ("bench", "pipeline", tiny, "--iterations", 1, "--no-peers", "--trace", file)
    assert cli(*arguments, "--architectures", "pre,async").code == 0
    events = json.loads(file.read_text("utf-8"))["traceEvents"]
    rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert list(processes.values()) in (
        ["pre", "async"],
        ["pre", "pre, predicted", "async", "async, predicted"],  # where another test left a profile
    )
    (staged,) = (number for number, name in processes.items() if name == "async")
    stages = {"read 1", "read 2", "copy", "kernel", "stall"}
    assert {name for (process, _), name in rows.items() if process == staged} == stages
    assert all((e["pid"], e["tid"]) in rows and e["dur"] >= 0 for e in events if e["ph"] == "X")
    fills = [e["args"]["bytes"] for e in events if e["ph"] == "C" and e["pid"] == staged]
    assert min(fills) == fills[-1] == 0 < max(fills)


def test_a_sweep_is_explained_part_by_part(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    own = shutil.copytree(tiny, tmp_path / "tiny")
    arguments = ("bench", "pipeline", own, "--iterations", 1, "--no-peers", "--explain")
    cli(*arguments, "--architectures", "2s").refuses(BAD, "--explain", "layerstream profile")
    document = cli(*arguments, "--architectures", "auto", "--json").document
    shares = document["accounts"]["auto"]
    assert {*document["accounts"]} == {"auto"}
    pieces = [piece for share in shares for piece in range(*share["pieces"])]
    assert pieces == list(range(len(open_pack(own / "1").manifest.pieces)))
    assert all(share["kernel_ms"] > 0 < share["predicted_ms"] for share in shares)
    assert all(share["pre_ms"] > 0 for share in shares)
    text = cli(*arguments, "--architectures", "auto").out
    assert "where a sweep's time goes" in text


@pytest.mark.slow
def test_resolutions(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    options = ("--architectures", "2s", "--iterations", 1, "--folder", tmp_path)
    plots = ("--plot", tmp_path / "plots", "--json")
    document = cli(
        "bench", "resolutions", "squeezenet1.1", "--resolutions", "64,32", *options, *plots
    ).document
    assert [run["resolution"] for run in document["runs"]] == [64, 32]
    for run in document["runs"]:
        assert [row["architecture"] for row in run["rows"]] == ["pre", "2s"]
    assert [path.name for path in tmp_path.iterdir()] == ["plots"]
    assert [path.name for path in (tmp_path / "plots").iterdir()] == [
        "squeezenet1.1-resolutions.svg"
    ]
    tuned = ("--architectures", "auto", *options[2:])
    shown = cli("bench", "resolutions", "squeezenet1.1", "--resolutions", "32", *tuned)
    assert shown.code == 0
    assert "auto" in shown.out
    assert "profile" not in shown.err  # a pack that is gone could not be measured


@over(
    "options, words",
    [
        (["--architectures", "2s,3s"], ["'3s'", "--architectures"]),
        (["--architectures", ""], ["''"]),
        (["--architectures", "auto@0%"], ["'0%'", "--architectures"]),
        (["--architectures", "2s@1KiB"], ["2s@1KiB", "1024"]),
        (["--weights", "much", "--architectures", "auto"], ["'much'", "--weights"]),
        (["--ring", "4KiB"], ["4096 bytes"]),
        (["--ring", "0"], ["--ring"]),
        (["--iterations", "0"], ["iterations"]),
        (["--resolution", "224"], ["16 pixels", "224"]),
        (["--source", "none.onnx"], ["none.onnx", "No such file"]),
    ],
)
def test_refusals(cli: Cli, tiny: Path, options: list[str], words: list[str]) -> None:
    cli("bench", "pipeline", tiny, *options).refuses(BAD, *words)


def test_another_source_is_refused(cli: Cli, packs: Packs, tiny: Path) -> None:
    other = packs.sources["pair"]
    cli("bench", "pipeline", tiny, "--source", other).refuses(BAD, str(other), "tiny.onnx")


@over("sizes", ["0", "224,x", "", "-1"])
def test_resolutions_that_are_none(cli: Cli, sizes: str) -> None:
    cli("bench", "resolutions", "resnet18", "--resolutions", sizes).refuses(BAD, "--resolutions")


def test_no_pack(cli: Cli, tmp_path: Path) -> None:
    cli("bench", "pipeline", tmp_path / "none").refuses(BAD, "none")
    cli("bench", "pipeline", tmp_path).refuses(BAD, "no pack")


@pytest.mark.parametrize(("option", "name"), [("--trace", "none/t.json"), ("--plot", "file/plots")])
def test_what_cannot_be_written_is_said_before_anything_is_measured(
    cli: Cli, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, name: str
) -> None:
    if option == "--plot":
        pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("cli.bench.bench_pipeline", lambda *_, **__: pytest.fail("measured"))
    place = tmp_path / name
    cli("bench", "pipeline", tiny, "--architectures", "2s", option, place).refuses(BAD, str(place))


@pytest.mark.slow
def test_peers_in_one_table(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    own = shutil.copytree(tiny, tmp_path / "tiny")  # the profile is written beside it
    names = (own, "squeezenet1.1")
    options = ("--runs", 2, "--weights", "50%", "--folder", tmp_path)
    document = cli("bench", "peers", *names, *options, "--json").document
    assert [network["model"] for network in document["networks"]] == ["tiny", "squeezenet1.1"]
    # The source of the first lies nowhere: OpenVINO cannot run its pack.
    both = [ONNXRUNTIME, *([OPENVINO] if find_spec("openvino") else [])]
    for network, there in zip(document["networks"], ([ONNXRUNTIME], both), strict=True):
        rows = {row["runtime"]: row for row in network["rows"]}
        assert list(rows) == [*there, "pre", "auto@50%"]
        assert min(rows[name]["ratio_to_best_peer"] for name in there) == 1
        for row in rows.values():
            assert row["delay_ms"]["median"] > 0
            assert row["max_relative_error"] <= 1e-5
            assert row["cgroup_peak_bytes"] is None or row["cgroup_peak_bytes"] > 0
        assert rows["auto@50%"]["equal_to_pre"]
        assert [OPENVINO in note for note in network["notes"]].count(True) == 2 - len(there)
    assert not list(tmp_path.glob("layerstream-bench-*"))


@over("weights", ["5", "0%", "101%", "5%,", "x%"])
def test_parts_of_weights_are_percentages(cli: Cli, tiny: Path, weights: str) -> None:
    cli("bench", "peers", tiny, "--weights", weights).refuses(BAD, "--weights")


def test_what_is_no_network_is_named(cli: Cli, tmp_path: Path) -> None:
    cli("bench", "peers", "resnet51", "--folder", tmp_path).refuses(BAD, "resnet51", "resnet50")
    cli("bench", "peers", "no-pack").refuses(BAD, "a pack or an ONNX file is named by its path")
    for path in ("resnet50.onnx", "repository/resnet50"):
        cli("bench", "peers", path).refuses(BAD, f"{path}: no such file, nor a pack")
    # All are looked at before the first is built.
    cli("bench", "peers", "vgg19", tmp_path).refuses(BAD, "no pack in it")


def test_a_resolution_is_of_networks_of_the_zoo(cli: Cli, packs: Packs, tiny: Path) -> None:
    for path in (tiny, packs.sources["pair"]):
        command = ("bench", "peers", "vgg19", path, "--resolution", 64)
        cli(*command).refuses(BAD, str(path), "--resolution")


def test_a_name_of_the_zoo_means_the_zoo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vgg19").mkdir()
    assert named("vgg16", 64).path is None
    assert not capsys.readouterr().err
    assert named("vgg19", None).path is None
    assert "./vgg19" in capsys.readouterr().err
    with pytest.raises(PackError, match="no pack in it"):
        named("./vgg19", None)


@pytest.mark.slow
def test_a_disk_of_a_speed_has_a_profile_of_its_own(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    own = shutil.copytree(tiny, tmp_path / "tiny")
    command = ("bench", "pipeline", own, "--architectures", "auto@50%", "--no-peers", "--json")
    profiles = {}
    for pace, name in ((("--pace", "200MB/s"), "profile-paced-200MB.json"), ((), "profile.json")):
        document = cli(*command, *pace, "--iterations", 2).document
        assert document["pace_bytes_per_second"] == (200e6 if pace else None)
        assert all(row["equal_to_pre"] for row in document["rows"])
        profiles[name] = json.loads((own / "1" / name).read_text())
    paced, real = profiles.values()
    assert paced["machine"] == real["machine"] | {"pace": 200e6}
    for read in paced["reads"]:
        assert read["n_bytes"] / read["seconds"]["median"] <= 200e6


@over("pace", ["fast", "0GB/s", "-1MB/s", "3.5"])
def test_what_is_no_speed_is_refused(cli: Cli, tiny: Path, pace: str) -> None:
    cli("bench", "pipeline", tiny, "--pace", pace).refuses(BAD, "--pace")
