"""A bounded run of each fuzzer; ``python -m tests.fuzz.cfg --minutes 10`` runs one longer."""

from pathlib import Path

import pytest

from tests.fuzz import cfg as cfg_fuzzer
from tests.fuzz import infer as infer_fuzzer
from tests.fuzz import onnx as onnx_fuzzer
from tests.fuzz import pack as pack_fuzzer

EXAMPLES = 300


def test_pack_reader(tmp_path: Path) -> None:
    sound = pack_fuzzer.sound_packs(tmp_path / "sound")
    fuzzer = pack_fuzzer.PackFuzzer(sound, tmp_path / "damaged")
    accepted = [fuzzer.run(number) for number in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES  # damage is subtle enough to pass, and not always


def test_onnx_reader(tmp_path: Path) -> None:
    fuzzer = onnx_fuzzer.OnnxFuzzer(tmp_path)
    accepted = [fuzzer.run(number) for number in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


def test_cfg_reader(tmp_path: Path) -> None:
    fuzzer = cfg_fuzzer.CfgFuzzer(tmp_path)
    accepted = [fuzzer.run(number) for number in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


def test_infer_reader() -> None:
    accepted = [infer_fuzzer.run(number) for number in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


@pytest.mark.parametrize(
    "main", [pack_fuzzer.main, onnx_fuzzer.main, cfg_fuzzer.main, infer_fuzzer.main]
)
def test_command_reports(main: pack_fuzzer.Main, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0.05", "7"]) == 0
    assert "no fault found" in capsys.readouterr().out


def test_first_example_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert pack_fuzzer.chosen_run(["--minutes", "2"])[0] == 120
    assert pack_fuzzer.chosen_run(["3", "11"]) == (3, 11)
    assert "first example: 11" in capsys.readouterr().out


def test_fault_names_its_example(capsys: pytest.CaptureFixture[str]) -> None:
    def faulty(number: int) -> bool:
        if number == 5:
            raise TypeError("a fault")
        return True

    with pytest.raises(TypeError, match="a fault"):
        pack_fuzzer.run_examples(faulty, 60, 3)
    assert "example 5 failed" in capsys.readouterr().err
