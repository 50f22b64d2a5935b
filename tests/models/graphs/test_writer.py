"""A graph of records as a message: which constants stay in their files, and by what names."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.graphs.file import reference
from models.graphs.graph import Graph
from models.graphs.ranges import appended
from models.graphs.reader import graph_of
from models.graphs.text import from_text
from models.graphs.writer import constant_offsets, model_of, serialised

_TEXT = (
    '<ir_version: 9, opset_import: ["" : 17]> m (float[400] x) => (float[400] y) { y = Add(x, c) }'
)
_ARRAY = np.arange(400, dtype=np.float32)


def graph_in_file(data: Path) -> Graph:
    """Return a graph whose constant ``c`` lies in the file ``data``."""
    return replace(from_text(_TEXT), constants={"c": appended(data, _ARRAY)})


def test_a_folder_by_another_path_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime takes names of files next to a model, and no paths."""
    monkeypatch.chdir(tmp_path)
    graph = graph_in_file(Path("c.data"))
    for folder in (Path(), tmp_path):
        (tensor,) = model_of(graph, folder).graph.initializer
        data = reference(tensor)
        assert data is not None
        assert data.path == Path("c.data")


def test_a_graph_that_was_written_and_read_is_the_same(tmp_path: Path) -> None:
    graph = graph_in_file(tmp_path / "c.data")
    again = graph_of(model_of(graph, tmp_path), tmp_path)
    assert np.array_equal(again.constants["c"], _ARRAY)
    assert serialised(again) == serialised(graph)


def test_offsets_are_those_of_the_numbers(tmp_path: Path) -> None:
    data = serialised(graph_in_file(tmp_path / "c.data"))
    (first,) = constant_offsets(data)
    assert data[first : first + _ARRAY.nbytes] == _ARRAY.tobytes()
