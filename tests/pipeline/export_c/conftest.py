"""What several tests of exported C share."""

from pathlib import Path

import pytest

from models.compiler.for_c import GraphForC, graph_for_c
from models.compiler.sources import SourceOptions


@pytest.fixture(scope="session")
def tiny_graph(tiny_onnx: Path, tmp_path_factory: pytest.TempPathFactory) -> GraphForC:
    """What the source of ``tiny_pack`` becomes in C."""
    return graph_for_c(tiny_onnx, tmp_path_factory.mktemp("tiny"), SourceOptions())
