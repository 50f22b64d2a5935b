"""``layerstream check``: one screen about a network, of which nothing is kept."""

import os
import shutil
from pathlib import Path

import pytest

from cli.measured import rounded, shortest
from tests.cli.test_cli_compile import indices
from tests.cli.test_cli_darknet import DETECTOR
from tests.examples import over
from tests.models.nets import parsed, written
from tests.server.support import BAD, Cli, Packs


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which temporary files are made."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", os.fspath(folder))
    return folder


def test_a_network_is_measured_in_three_budgets_and_leaves_no_files(
    cli: Cli, packs: Packs, work: Path
) -> None:
    source = packs.sources["tiny"]
    before = sorted(source.parent.iterdir())
    result = cli("check", source)
    assert result.code == 0
    for words in ("supported", "yes", "image: float32", "budget", "takes here", f"up {source}"):
        assert words in result.out
    document = cli("check", source, "--json").document
    assert document["supported"]
    budgets = [row["budget_bytes"] for row in document["delays"]]
    assert budgets == sorted(budgets)
    assert budgets[0] == document["smallest_budget_bytes"]
    assert all(row["delay_ms"] > 0 for row in document["delays"])
    assert sorted(source.parent.iterdir()) == before
    assert not [*work.iterdir()]


def test_packs_and_networks_of_darknet_are_checked_too(
    cli: Cli, packs: Packs, tmp_path: Path
) -> None:
    pack = cli("check", packs.repository / "tiny", "--json").document
    assert pack["model"] == "tiny"
    cfg, onnx, weights = (tmp_path / f"detector.{end}" for end in ("cfg", "onnx", "weights"))
    cfg.write_text(DETECTOR)
    assert cli("import-darknet", cfg, "-o", onnx).code == 0
    assert cli("export-darknet", onnx, "-o", weights).code == 0
    assert cli("check", cfg, weights, "--json").document["model"] == "detector"


def test_what_is_not_supported_says_why(cli: Cli, tmp_path: Path, work: Path) -> None:
    text = "g (float[1,3,8,8] x) => (float[?] y) { y = NoSuchOperator(x) }"
    source = written(parsed(text), tmp_path / "m.onnx")
    cli("check", source).refuses(BAD, str(source), "NoSuchOperator")
    assert not [*work.iterdir()]
    cli("check", tmp_path / "none.onnx").refuses(BAD, "no such file")
    other = written(indices(0, 1), tmp_path / "n.onnx")
    cli("check", source, other).refuses(BAD, "one network at a time", str(other))


def test_recipes_next_to_the_file_count(cli: Cli, packs: Packs, tmp_path: Path) -> None:
    source = tmp_path / "tiny.onnx"
    shutil.copy(packs.sources["tiny"], source)
    assert cli("check", source, "--json").document["preprocess"] is None
    (height, width) = cli("check", source, "--json").document["inputs"][0]["shape"][2:]
    source.with_name("tiny.preprocess.toml").write_text(f"size = [{width}, {height}]\n")
    assert cli("check", source, "--json").document["preprocess"]["size"] == [width, height]


def test_what_cannot_be_run_is_not_measured(
    cli: Cli, packs: Packs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = cli("check", written(indices(0, 5), tmp_path / "m.onnx"))
    assert fails.code == 0
    assert "not measured: it fails on drawn inputs: layer 'y' (Gather)" in fails.out
    monkeypatch.setattr("cli.measured.spare_bytes", lambda: 1)
    assert "not measured: there is too little memory now" in cli("check", packs.sources["tiny"]).out


@over(
    "figure, text",
    [(1234.5, "1,234"), (99.6, "100"), (10.04, "10"), (9.96, "10.0"), (0.826, "0.83")],
)
def test_figures_for_people(figure: float, text: str) -> None:
    assert rounded(figure) == text


@over(
    "delays, best, count",
    [
        ([2.0, 1.9, 1.0], 1.9, 2),  # the first two agree
        ([0.2, 0.1, 0.105, 9.0], 0.1, 3),
        ([0.1, 0.2, 0.3, 9.0], 0.1, 3),  # none agree, and they took their time
    ],
)
def test_passes_are_repeated_until_two_agree(delays: list[float], best: float, count: int) -> None:
    left = iter(delays)
    assert shortest(lambda: next(left)) == best
    assert len([*left]) == len(delays) - count
