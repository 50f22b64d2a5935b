"""From an ONNX file to the graph that becomes C, of which nothing lies in blocks and nothing streams."""

from dataclasses import dataclass
from pathlib import Path

from models.compiler.passes.record import Compilation
from models.compiler.passes.run import run
from models.compiler.passes.table import passes_of
from models.compiler.sources import SourceModel, SourceOptions
from models.compiler.writing.write import write_graph
from models.errors import CompileError
from models.graphs.graph import Graph
from models.graphs.inputs import take_defaults
from models.graphs.traits import infinite_weights
from models.packs.target import c_target
from models.progress import Progress, silent
from models.runtime.heap import collect


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

    def source_label(self, label: str) -> str:
        """Return what the source calls the node ``label`` of the graph, or the first that needs its result.

        ONNX Runtime and passes write several nodes as one, or one as several.
        """
        source = self.source.graph
        labels = {node.label for node in source.nodes}
        producers = {name: node.label for node in source.nodes for name in node.made}
        next_ones = [index for index, node in enumerate(self.graph.nodes) if node.label == label]
        for index in next_ones:
            node = self.graph.nodes[index]
            if node.label in labels:
                return node.label
            for name in node.made:
                if name in producers:
                    return producers[name]
            readers = {reader for name in node.made for reader in self.graph.readers.get(name, ())}
            next_ones += sorted(readers.difference(next_ones))
        return label


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
    if source.shapes > 1:
        raise CompileError(f"{path}: {source.shapes} shapes; C has one: give one with --shape")
    for text in infinite_weights(source.graph):
        options.warn(text)
    source.check_space(folder, folder.parent)
    if options.calibrate is not None:
        progress("calibrate")
        source.quantise(folder / "quantised")
    read, _ = take_defaults(source.graph)
    work = Compilation(read, path, folder / "work", c_target())
    work.folder.mkdir()
    run(work, passes_of(work.target), progress)
    collect()  # what passes held refers to itself
    return GraphForC(source, work.graph, work.folder)
