"""What ``bench peers`` says of contenders, and what it does without."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.benchmark import comparison
from pipeline.benchmark.comparison import best_of
from pipeline.benchmark.ours import Way
from pipeline.peers import ONNXRUNTIME, OPENVINO


def test_the_best_peer_is_the_fastest_of_them() -> None:
    assert best_of({ONNXRUNTIME: 2.0, OPENVINO: 1.0, "pre": 0.5}) == OPENVINO
    assert best_of({ONNXRUNTIME: 2.0, "pre": 0.5}) == ONNXRUNTIME
    assert best_of({"pre": 0.5}) is None


@pytest.mark.parametrize(
    ("way", "label"),
    [(Way("pre"), "pre"), (Way("auto", 5), "auto@5%"), (Way("auto", 2.5), "auto@2.5%")],
)
def test_ways_have_names(way: Way, label: str) -> None:
    assert way.label == label


def test_where_no_group_can_be_made_a_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(comparison, "memory_group", refused)
    notes: list[str] = []
    with ExitStack() as stack:
        assert comparison._group(stack, "pre", notes) is None
    assert notes == ["memory is not measured: Permission denied: a memory cgroup needs root"]


def test_files_that_are_not_there_are_no_fault(tmp_path: Path) -> None:
    there = tmp_path / "weights.bin"
    there.write_bytes(b"x" * 8192)
    comparison._let_go([there, tmp_path / "missing"])
    assert there.read_bytes() == b"x" * 8192
