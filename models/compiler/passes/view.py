"""A network between two passes as an ONNX model that stands by itself: to run, to print, to infer types of.

As text it is in the syntax of ``onnx.printer``, which ``onnx.parser`` reads; large weights lie in files.
"""

from pathlib import Path

import onnx

from models.compiler.analysis.graph import Graph
from models.compiler.cutting.piece_models import named_model
from models.compiler.passes.record import Compilation, Pass
from models.graphs.file import tensor_in

#: The file in the folder of a compilation with the large weights of a graph.
_WEIGHTS = "between.data"


#: What a network is between passes: two are the same where they are one object, or equal bytes.
Key = Graph | bytes


def key_of(work: Compilation) -> Key:
    """Return what differs where the last pass changed nodes, values or constants."""
    return work.graph if work.is_read else work.model.SerializeToString(deterministic=True)


def is_same(one: Key | None, other: Key) -> bool:
    """Return whether two networks are the same."""
    return one is other or (isinstance(one, bytes) and one == other)


def model_between(work: Compilation) -> onnx.ModelProto:
    """Return the network as it is now; large weights lie in files of ``work.folder``."""
    model = onnx.ModelProto()
    if not work.is_read:
        model.CopyFrom(work.model)
        return model
    graph = work.graph
    with (work.folder / _WEIGHTS).open("wb") as file:
        tensors = [
            graph.tensors[name]
            if name in graph.tensors
            else tensor_in(file, name, graph.constants[name])
            for name in graph.constants_of(graph.nodes)
        ]
    model.CopyFrom(
        named_model(graph, "network", graph.nodes, (graph.inputs, graph.outputs), tensors)
    )
    return model


class Printing:
    """Writes the network after each pass that changes it as text into ``folder``: an observer of passes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: Key | None = None
        self._count = 0

    def before(self, work: Compilation, step: Pass) -> None:
        """Write nothing: it was written after the pass before."""

    def after(self, work: Compilation, step: Pass) -> None:
        """Write NUMBER-PASS.txt.

        Raises:
            OSError: it cannot be written.
        """
        self._count += 1
        last, self._last = self._last, key_of(work)
        if not is_same(last, self._last):
            self._folder.mkdir(parents=True, exist_ok=True)
            text = onnx.printer.to_text(model_between(work))
            (self._folder / f"{self._count:02}-{step.name}.txt").write_text(text, "utf-8")
