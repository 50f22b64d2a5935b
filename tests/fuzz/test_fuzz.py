"""A bounded run of each fuzzer; ``python -m tests.fuzz.pack`` and ``.onnx`` run for as long as wanted."""

from pathlib import Path

import pytest

from models.pack import Pack
from tests.fuzz import onnx as onnx_fuzzer
from tests.fuzz import pack as pack_fuzzer

EXAMPLES = 300


def test_pack_reader(tiny_pack: Pack, tmp_path: Path) -> None:
    fuzzer = pack_fuzzer.PackFuzzer(tiny_pack.folder, tmp_path)
    accepted = [fuzzer.run(number) for number in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES  # damage is subtle enough to pass, and not always


def test_onnx_reader(tmp_path: Path) -> None:
    fuzzer = onnx_fuzzer.OnnxFuzzer(tmp_path)
    accepted = [fuzzer.run(number) for number in range(EXAMPLES)]
    assert 0 < sum(accepted) < EXAMPLES


@pytest.mark.parametrize("main", [pack_fuzzer.main, onnx_fuzzer.main])
def test_command_reports(main: pack_fuzzer.Main, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["0.05", "7"]) == 0
    assert "no fault found" in capsys.readouterr().out


def test_fault_names_its_example(capsys: pytest.CaptureFixture[str]) -> None:
    def faulty(number: int) -> bool:
        if number == 5:
            raise TypeError("a fault")
        return True

    with pytest.raises(TypeError, match="a fault"):
        pack_fuzzer.run_examples(faulty, 60, 3)
    assert "example 5 failed" in capsys.readouterr().err
