"""What ``bench peers`` calls contenders, and which peer is the best."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from pipeline.benchmark.comparison import best_of, group_or_note, let_go
from pipeline.benchmark.ours import StreamedArchitecture
from pipeline.peers import ONNXRUNTIME, OPENVINO
from pipeline.peers.cgroup import Controller, MemoryGroup
from tests.examples import over


def test_the_best_peer_is_the_fastest_of_them() -> None:
    assert best_of({ONNXRUNTIME: 2.0, OPENVINO: 1.0, "pre": 0.5}) == OPENVINO
    assert best_of({ONNXRUNTIME: 2.0, "pre": 0.5}) == ONNXRUNTIME
    assert best_of({"pre": 0.5}) is None


@over(
    "way, label",
    [
        (StreamedArchitecture("pre"), "pre"),
        (StreamedArchitecture("auto", 5), "auto@5%"),
        (StreamedArchitecture("auto", 2.5), "auto@2.5%"),
    ],
)
def test_ways_have_names(way: StreamedArchitecture, label: str) -> None:
    assert way.label == label


# What contenders of ``bench peers`` start with, and what is said where it cannot be had.


def in_folder(root: Path) -> Controller:
    return Controller(root, "limit", ("swap", "0"), "usage", "peak", "events", "anon", "file")


def test_a_group_lives_until_the_stack_ends(tmp_path: Path) -> None:
    @contextmanager
    def made(name: str) -> Iterator[MemoryGroup]:
        group = MemoryGroup(name, controller=in_folder(tmp_path))
        yield group
        group.remove()

    notes: list[str] = []
    with ExitStack() as stack:
        group = group_or_note(stack, "pre", notes, made)
        assert group is not None
        assert group.path.name.startswith("layerstream-bench-pre-")
        assert group.path.is_dir()
    assert not group.path.exists()
    assert notes == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (OSError("no memory controller"), "no memory controller"),
    ],
)
def test_where_no_group_can_be_made_a_line_says_so(fault: OSError, said: str) -> None:
    def refused(name: str) -> NoReturn:
        raise fault

    notes: list[str] = []
    with ExitStack() as stack:
        assert group_or_note(stack, "pre", notes, refused) is None
    assert notes == [f"memory is not measured: {said}: a memory cgroup needs root"]


def test_files_that_are_not_there_are_no_fault(tmp_path: Path) -> None:
    there = tmp_path / "weights.bin"
    there.write_bytes(b"x" * 8192)
    let_go([there, tmp_path / "missing"])
    assert there.read_bytes() == b"x" * 8192
