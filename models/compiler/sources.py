"""The source of a compilation: how it is read, and quantised, and whether there is room for it."""

import errno
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from PIL import Image

from models.compiler.optimising.by_onnxruntime import write_reference
from models.compiler.writing.recipes import Recipes
from models.errors import CompileError
from models.graphs.inputs import Warn
from models.graphs.metadata import Metadata, read_metadata
from models.graphs.onnx_reader import read_onnx
from models.graphs.traits import count_parameters


@dataclass(frozen=True)
class SourceOptions(Recipes):
    """How a file is read, and recipes.

    ``batch``: what unknown first dimensions become; None: 1. ``keep_inputs``: inputs with a value that stay
    inputs, though they look like weights. ``calibrate``: makes pictures, with which the network becomes one
    of 8-bit integers; None: it stays as it is. ``warn`` is called with what a user should know.
    """

    batch: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    keep_inputs: tuple[str, ...] = ()
    calibrate: Callable[[], Iterable[Image.Image]] | None = None
    warn: Warn = lambda text: None


@dataclass
class SourceModel:
    """The file ``path`` as it was read.

    ``model`` is taken by the optimiser. ``parameters``: numbers that were trained. ``computed``: the file
    that ``model`` is of: ``path``, or what was quantised of it.
    """

    path: Path
    options: SourceOptions
    model: onnx.ModelProto
    metadata: Metadata
    parameters: int
    computed: Path

    @classmethod
    def read(cls, path: Path, options: SourceOptions) -> "SourceModel":
        """Read ``path``.

        Raises:
            OnnxError: it cannot be used.
        """
        model = _read(path, options, options.warn)
        metadata = read_metadata(model, path)
        return cls(path, options, model, metadata, count_parameters(model), path)

    def check_space(self, folder: Path, where: Path) -> None:
        """Refuse early where the disk of ``folder`` cannot hold a working copy and what is made of it.

        Raises:
            CompileError: it cannot; the message calls the folder ``where``.
        """
        needed = 2 * sum(
            math.prod(tensor.dims) * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
            for tensor in self.model.graph.initializer
        )
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise CompileError(
                f"{where}: no space to compile {self.path.name}: "
                f"needs {needed / 2**20:.1f} MiB, {free / 2**20:.1f} MiB are free"
            ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def quantise(self, folder: Path) -> None:
        """Let the model be one of 8-bit integers; ``folder`` is new, and keeps its file.

        Raises:
            CompileError: as ``quantise``. Whatever ``calibrate`` raises.
        """
        from models.compiler.quantising import quantise  # a second of imports

        assert self.options.calibrate is not None
        folder.mkdir()
        preprocess = self.options.preprocess or self.metadata.preprocess
        pictures, warn = self.options.calibrate(), self.options.warn
        self.computed = quantise(self.model, self.path, preprocess, pictures, folder, warn)
        self.model = read_onnx(self.computed, keep=self.options.keep_inputs)

    def write_reference(self, folder: Path) -> Path:
        """Read it once more, and write it to ``folder`` as a file whose weights ONNX Runtime maps."""
        return write_reference(_read(self.computed, self.options), folder)


def _read(path: Path, options: SourceOptions, warn: Warn = lambda text: None) -> onnx.ModelProto:
    picture = options.preprocess.shape if options.preprocess else ()
    return read_onnx(path, options.batch, options.shapes, warn, options.keep_inputs, picture)
