"""An exported network, compiled and called: a shared library through ctypes."""

import ctypes
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from models.compiler.for_c import GraphForC, graph_for_c
from models.compiler.sources import SourceOptions
from pipeline.export_c.export import Exported, ExportOptions, export_c, write_export
from tests.models.nets import written

Arrays = Mapping[str, NDArray[Any]]

COMPILER = shutil.which("gcc") or shutil.which("cc")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")
# Optimising takes a compiler three times as long: it is what tests/pipeline/export_c/test_drawn.py has.
FLAGS = ("-std=c99", "-O0", "-Wall", "-Wextra", "-Werror", "-pedantic")

_READ = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t
)
_PIXELS = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_void_p
)


def for_c(model: onnx.ModelProto, folder: Path, **options: Any) -> GraphForC:
    """Return what ``model``, written to source.onnx in ``folder``, becomes in C."""
    work = folder / "work"
    work.mkdir()
    return graph_for_c(written(model, folder / "source.onnx"), work, SourceOptions(**options))


def run_compiler(*arguments: object) -> None:
    assert COMPILER is not None
    done = subprocess.run(
        [COMPILER, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@dataclass
class Compiled:
    """``weights``: the file that the callback reads, which a test may damage; ``reads``: what it read.

    ``image``: [channels, rows, columns], of which the callback of pixels brings ``rows``.
    """

    exported: Exported
    library: ctypes.CDLL
    weights: bytearray
    reads: list[tuple[int, int]]
    fails: bool = False
    image: NDArray[np.float32] | None = None
    rows: list[int] = field(default_factory=list)

    @classmethod
    def of(
        cls, made: GraphForC, folder: Path, flags: Sequence[str] = FLAGS, **options: Any
    ) -> "Compiled":
        exported = export_c(made, ExportOptions(**options))
        write_export(exported, folder)
        prefix = exported.api.prefix
        library = folder / f"{prefix}.so"
        run_compiler(*flags, "-shared", "-fPIC", "-o", library, folder / f"{prefix}.c", "-lm")
        file = folder / f"{prefix}.weights"
        weights = bytearray(file.read_bytes() if file.exists() else b"")
        return cls(exported, ctypes.CDLL(str(library)), weights, [])

    def function(self, name: str) -> Any:
        return getattr(self.library, f"{self.exported.api.prefix}_{name}")

    def _read(self, _: int, offset: int, to: int, length: int) -> int:
        self.reads.append((offset, length))
        data = bytes(self.weights[offset : offset + length])
        ctypes.memmove(to, data, len(data))
        return int(self.fails or len(data) < length)

    def _pixels(self, _: int, row: int, column: int, columns: int, to: int) -> int:
        assert self.image is not None
        self.rows.append(row)
        line = np.ascontiguousarray(self.image[:, row, column : column + columns])
        assert line.shape[1] == columns
        ctypes.memmove(to, line.ctypes.data, line.nbytes)
        return int(self.fails)

    def call(self, name: str, *arguments: Any) -> int:
        callbacks = _READ(self._read), _PIXELS(self._pixels)  # live while they are called
        given: tuple[Any, ...] = (callbacks[0], None) if self.exported.api.reads else ()
        given += (callbacks[1], None) if self.exported.api.asks and name == "run" else ()
        return int(self.function(name)(*given, *arguments))

    def check(self) -> int:
        return self.call("check")

    def run(self, inputs: Arrays) -> tuple[int, dict[str, NDArray[Any]]]:
        """Return the status and the outputs, which are NaN, or 99, where nothing was written."""
        network, names = self.exported.api.network, self.exported.api.names
        outputs = {
            p.name: np.full(p.shape, np.nan if p.dtype == "float32" else 99, p.dtype)
            for p in network.outputs
        }
        given = {p.name: np.ascontiguousarray(inputs[p.name], p.dtype) for p in network.inputs}
        if self.exported.api.asks:
            self.image, given = next(iter(given.values()))[0], {}
        if self.exported.api.ports == "caller":
            pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in given.values()]
            pointers += [array.ctypes.data_as(ctypes.c_void_p) for array in outputs.values()]
            return self.call("run", *pointers), outputs
        for name, array in given.items():
            ctypes.memmove(self._inside(names[name]), array.ctypes.data, array.nbytes)
        status = self.call("run")
        for name, array in outputs.items():
            ctypes.memmove(array.ctypes.data, self._inside(names[name]), array.nbytes)
        return status, outputs

    def _inside(self, name: str) -> int:
        function = self.function(name)
        function.restype = ctypes.c_void_p
        return int(function())


def agree(got: Arrays, expected: Arrays, relative: float = 1e-5) -> None:
    """Check that outputs differ by ``relative`` of the largest value at most."""
    assert list(got) == list(expected)
    for name, array in expected.items():
        assert got[name].shape == array.shape
        scale = float(np.abs(array).max()) or 1.0
        np.testing.assert_allclose(got[name], array, rtol=0, atol=relative * scale, err_msg=name)
