"""From an ONNX file to the graph that becomes C, of which nothing lies in blocks and nothing streams."""

from dataclasses import dataclass
from pathlib import Path

from models.compiler.analysis.graph import Graph
from models.compiler.passes.record import Compilation
from models.compiler.passes.run import run
from models.compiler.passes.table import passes_of
from models.compiler.sources import SourceModel, SourceOptions
from models.compiler.writing.write import write_graph
from models.graphs.inputs import take_defaults
from models.graphs.traits import infinite_weights
from models.packs.target import c_target
from models.progress import Progress, silent
from models.runtime.heap import give_back


@dataclass(frozen=True)
class GraphForC:
    """``graph``: what ``source`` becomes; its constants lie in ``folder``."""

    source: SourceModel
    graph: Graph
    folder: Path

    def written(self) -> Path:
        """Write the graph as a file, whose weights ONNX Runtime maps."""
        return write_graph(self.graph, self.folder / "graph.onnx")

    def reference(self) -> Path:
        """Write the source, as it was read, as such a file."""
        return self.source.write_reference(self.folder)


def graph_for_c(
    path: Path, folder: Path, options: SourceOptions, progress: Progress = silent
) -> GraphForC:
    """Return what the file ``path`` becomes.

    ``folder``: an empty one for files. ``progress`` is called at each step.

    Raises:
        OnnxError: the file cannot be used. CompileError: it cannot be compiled.
        Whatever ``options.calibrate`` raises.
    """
    progress("read")
    source = SourceModel.read(path, options)
    for text in infinite_weights(source.model):
        options.warn(text)
    source.check_space(folder, folder.parent)
    if options.calibrate is not None:
        progress("calibrate")
        source.quantise(folder / "quantised")
    work = Compilation(source.model, path, folder / "work", c_target())
    work.folder.mkdir()
    take_defaults(source.model)
    run(work, passes_of(work.target), progress)
    give_back()  # what passes held refers to itself
    return GraphForC(source, work.graph, work.folder)
