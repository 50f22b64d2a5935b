"""The record still holds, for a small selection; ``python -m tests.witness compare`` takes all of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.witness.__main__ import differences
from tests.witness.subjects import subjects

RECORD = Path(__file__).with_name("record.json")
ROOT = RECORD.parents[2]
SELECTION = (
    *("default*", "patchnet-32KiB*", "odd:*", "mobilenetv2:int8", "squeezenet1.1:stored lossless"),
    *("yolov4-tiny", "resnet18:cuda"),
)


def test_every_subject_is_recorded_and_none_failed() -> None:
    keys = [key.split("/") for key in json.loads(RECORD.read_text())["facts"]]
    assert {subject for subject, _ in keys} == set(subjects())
    assert not [subject for subject, fact in keys if fact == "fails"]


def test_differences_are_told_word_by_word() -> None:
    recorded = {"a/plan": "ring 8 arena 4 none", "a/graphs": "2", "a/gone": "3"}
    found = {"a/plan": "ring 9 arena 4 none", "a/graphs": "4", "a/new": "5 6"}
    told = ["a/gone: 3 -> nothing", "a/new: nothing -> 5 6", "a/plan: ring 8 -> 9"]
    assert list(differences(recorded, found, "graphs")) == told
    assert list(differences(recorded, found, "graphs,[gn]*")) == told[2:]
    assert list(differences(recorded, found, ""))[1] == "a/graphs: 2 -> 4"
    assert not list(differences(recorded, recorded, ""))


@pytest.mark.slow
def test_a_selection_is_as_recorded() -> None:
    command = [sys.executable, "-m", "tests.witness", "compare", str(RECORD), "--only"]
    done = subprocess.run(
        [*command, ",".join(SELECTION)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.stdout.startswith("nothing compared"):
        pytest.skip(done.stdout)
    assert done.returncode == 0, f"{done.stdout}{done.stderr[-2000:]}"
