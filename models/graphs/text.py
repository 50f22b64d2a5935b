"""A graph as text, in the syntax of ``onnx.printer`` and ``onnx.parser``; large constants lie in files."""

from pathlib import Path

import onnx

from models.graphs.graph import Graph
from models.graphs.reader import graph_of
from models.graphs.writer import model_of


def to_text(graph: Graph, folder: Path | None = None) -> str:
    """Return ``graph`` as text; mapped constants in ``folder`` are named without it."""
    return str(onnx.printer.to_text(model_of(graph, folder)))


def from_text(text: str, folder: Path = Path()) -> Graph:
    """Return the graph that ``text`` describes; ``folder``: where its files lie.

    Raises:
        onnx.parser.ParseError: it is not of this syntax.
    """
    return graph_of(onnx.parser.parse_model(text), folder)
