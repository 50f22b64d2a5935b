"""``layerstream compile --precision int8``, ``evaluate``, and what ``inspect`` shows of it."""

import errno
import json
import os
from pathlib import Path

import pytest

from models.images.preprocess import Preprocess
from models.records import plain, read_record
from tests.models.compiler.test_int8 import RECIPE
from tests.models.nets import parsed, written
from tests.pipeline.evaluating.test_evaluate import COLOURS, colour_folder
from tests.server.support import BAD, FAILED, Cli


@pytest.fixture
def source(tmp_path: Path) -> Path:
    model = parsed(
        """g (float[1,3,16,16] x) => (float[1,3] y) {
            a = Conv<pads=[1,1,1,1]>(x, w)
            p = GlobalAveragePool(a)
            y = Flatten(p)
        }""",
        {"w": (3, 3, 3, 3)},
    )
    return written(model, tmp_path / "m.onnx")


def _recipe(folder: Path) -> Path:
    path = folder / "recipe.toml"
    fields = plain(RECIPE, without_defaults=True)
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items()))
    assert read_record(Preprocess, fields) == RECIPE
    return path


def test_int8_is_compiled_evaluated_and_shown(source: Path, tmp_path: Path, cli: Cli) -> None:
    pictures, repository = colour_folder(tmp_path), tmp_path / "packs"
    (pictures / "green" / "broken.png").unlink()
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(COLOURS))
    given = (source, "--preprocess", _recipe(tmp_path), "--labels", labels)
    cli("compile", *given, "-o", repository / "whole")
    small = ("--precision", "int8", "--calibrate", pictures)
    cli("compile", *given, "-o", repository / "small", *small)
    against = ("--against", repository / "whole", "--json")
    found = json.loads(cli("evaluate", repository / "small", "--dataset", pictures, *against).out)
    assert found["samples"] == 4
    assert 0 <= found["top1"] <= 1
    assert found["agreement"]["compared"] == 4
    assert found["against"] == "whole"
    shown = cli("inspect", repository / "small").out
    assert f"agreement with whole top-1 {100 * found['agreement']['top1']:.2f} % of 4" in shown
    kept = json.loads(cli("inspect", repository / "small", "--json").out)
    assert [item["top1"] for item in kept["evaluations"]] == [found["top1"]]
    assert "Most often mixed up" in cli("evaluate", repository / "small", "--dataset", pictures).out
    # What native kernels take is counted alike by all commands that say how small a budget may be.
    least = kept["pictures_budget_bytes"]
    listed = json.loads(cli("list", repository, "--models", "small", "--json").out)
    assert listed["models"][0]["smallest_budget_bytes"] == kept["smallest_budget_bytes"] >= least
    assert cli("plan", repository / "small", "--budget", f"{least}B").code == 0
    assert cli("plan", repository / "small", "--budget", f"{least - 8}B").code != 0


def test_what_cannot_be_evaluated_is_said(source: Path, tmp_path: Path, cli: Cli) -> None:
    pictures = colour_folder(tmp_path)
    pack = tmp_path / "packs" / "m"
    cli("compile", source, "--preprocess", _recipe(tmp_path), "-o", pack)
    for words, said in (
        (("--dataset", "cifar10"), "needs --data"),
        (("--dataset", tmp_path / "none"), "no such folder"),
        (("--dataset", __file__), "give it as --data"),
        (("--dataset", pictures, "--data", pictures), "--data is where"),
        (("--dataset", "bccd", "--data", pictures), "Annotations"),
        (("--dataset", pictures, "--broken", "refuse"), "broken.png"),
    ):
        cli("evaluate", pack, *words).refuses(BAD, said)


def test_results_that_cannot_be_kept_are_not_lost(
    source: Path, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, pack = colour_folder(tmp_path), tmp_path / "packs" / "m"
    labels, file = tmp_path / "labels.txt", pack / "1" / "evaluation.json"
    labels.write_text("\n".join(COLOURS))
    cli("compile", source, "--preprocess", _recipe(tmp_path), "--labels", labels, "-o", pack)
    file.write_text("[{}]")
    # Before there are figures, so that none are lost: nothing is printed.
    cli("evaluate", pack, "--dataset", pictures).refuses(BAD, "remove it and evaluate again")
    file.unlink()

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pipeline.evaluating.results_file.write_atomically", full)
    lost = cli("evaluate", pack, "--dataset", pictures, "--json")
    assert lost.code == FAILED
    assert "No space left" in lost.err
    assert json.loads(lost.out)["samples"] == 4


def test_int8_and_calibrate_go_together(source: Path, tmp_path: Path, cli: Cli) -> None:
    asked = ("compile", source, "-o", tmp_path / "packs" / "m")
    cli(*asked, "--precision", "int8").refuses(BAD, "needs --calibrate DIR")
    for words in ((), ("--store", "lossless"), ("--store", "fp16", "--no-check")):
        cli(*asked, "--calibrate", tmp_path, *words).refuses(BAD, "goes with --precision int8")
    small = ("--precision", "int8", "--calibrate", tmp_path)
    refused = cli("compile", source, "-o", tmp_path / "packs" / "m", *small)
    refused.refuses(BAD, "no pictures in it")


def test_half_and_mixed_are_ways_to_store(source: Path, tmp_path: Path, cli: Cli) -> None:
    for precision, store in (("half", "fp16"), ("mixed", "int8")):
        to = ("-o", tmp_path / "packs" / precision)
        made = cli("compile", source, *to, "--precision", precision, "--json")
        assert any(f"--store {store} makes" in text for text in made.document["warnings"])
        both = cli("compile", source, *to, "--force", "--precision", precision, "--store", "bf16")
        both.refuses(BAD, f"--store {store}: leave one of them out")
