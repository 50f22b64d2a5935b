"""The source of a compilation: how it is read, and quantised, and whether there is room for it."""

import errno
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from models.compiler.optimising.by_onnxruntime import write_reference
from models.compiler.writing.configured import configured_preprocess
from models.compiler.writing.exported import exported_preprocess
from models.compiler.writing.recipes import Recipes
from models.errors import CompileError
from models.graphs.graph import Graph
from models.graphs.metadata import Metadata
from models.graphs.onnx_reader import NetworkFile, ReadOptions, read_graph
from models.graphs.traits import count_parameters
from models.images.preprocess import Preprocess


@dataclass(frozen=True)
class SourceOptions(Recipes, ReadOptions):
    """How a file is read, and recipes.

    ``calibrate``: makes pictures, with which the network becomes one of 8-bit integers; None: it stays as
    it is.
    """

    calibrate: Callable[[], Iterable[Image.Image]] | None = None


@dataclass
class SourceModel:
    """The file ``path`` as it was read, in one of its ``shapes``.

    ``parameters``: numbers that were trained. ``computed``: the file that ``graph`` is of: ``path``, or
    what was quantised of it.
    """

    path: Path
    options: SourceOptions
    graph: Graph
    metadata: Metadata
    parameters: int
    computed: Path
    shapes: int = 1

    @classmethod
    def read(cls, path: Path, options: SourceOptions) -> "SourceModel":
        """Read ``path``.

        Raises:
            OnnxError: it cannot be used.
        """
        source = _read(path, options)
        parameters = count_parameters(source.graph)
        return cls(
            *(path, options, source.graph, source.metadata, parameters, path), shapes=source.shapes
        )

    @property
    def shape(self) -> int:
        """The number of its shape, counted from the largest."""
        return self.options.choice

    def check_space(self, folder: Path, where: Path) -> None:
        """Refuse early where the disk of ``folder`` cannot hold a working copy and what is made of it.

        Raises:
            CompileError: it cannot; the message calls the folder ``where``.
        """
        needed = 2 * sum(array.nbytes for array in self.graph.constants.values())
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise CompileError(
                f"{where}: no space to compile {self.path.name}: "
                f"needs {needed / 2**20:.1f} MiB, {free / 2**20:.1f} MiB are free"
            ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def quantise(self, folder: Path) -> None:
        """Let the network be one of 8-bit integers; ``folder`` is new, and keeps its file.

        Raises:
            CompileError: as ``quantise``. Whatever ``calibrate`` raises.
        """
        from models.compiler.quantising import quantise  # a second of imports

        assert self.options.calibrate is not None
        folder.mkdir()
        preprocess = (
            self.options.preprocess
            or self.metadata.preprocess
            or self._exported()
            or configured_preprocess(self.options.configs)
        )
        pictures, warn = self.options.calibrate(), self.options.warn
        self.computed = quantise(self.graph, self.path, preprocess, pictures, folder, warn)
        self.graph = read_graph(
            self.computed, ReadOptions(keep_inputs=self.options.keep_inputs)
        ).graph

    def _exported(self) -> Preprocess | None:
        """Return how a picture becomes the input as the exporter of the file has it."""
        if self.metadata.exported is None:
            return None
        names = [name for name in self.graph.inputs if name not in self.graph.constants]
        inputs = {name: self.graph.array(name) for name in names}
        return exported_preprocess(self.metadata.exported, inputs)

    def write_reference(self, folder: Path) -> Path:
        """Read it once more, and write it to ``folder`` as a file whose weights ONNX Runtime maps."""
        options = replace(self.options, warn=lambda text: None)
        if self.computed != self.path:  # what was quantised has its other outputs alone
            options = replace(options, without_outputs=())
        return write_reference(_read(self.computed, options).graph, folder)


def _read(path: Path, options: SourceOptions) -> NetworkFile:
    picture, configured = options.preprocess, configured_preprocess(options.configs)
    return read_graph(
        path, options, picture.shape if picture else (), configured.shape if configured else ()
    )
