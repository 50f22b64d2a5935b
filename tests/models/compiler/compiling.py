"""Networks as they are after passes of the compiler."""

from pathlib import Path

from models.compiler.cutting.partition import Load, faults
from models.compiler.passes.record import Compilation
from models.compiler.passes.run import run
from models.compiler.passes.table import passes_of
from models.graphs.onnx_reader import read_graph
from models.packs.target import Target, host_target
from models.runtime.sessions import open_piece


def divided(
    source: Path,
    folder: Path,
    chunk_bytes: int,
    load: Load = open_piece,
    target: Target | None = None,
) -> Compilation:
    """Return ``source`` after all passes; working files are in ``folder``, which is new."""
    folder.mkdir()
    target = target or host_target()
    work = Compilation(
        read_graph(source).graph,
        source,
        folder,
        target,
        finest_bytes=chunk_bytes,
        fault=faults(load),
    )
    run(work, passes_of(target))
    return work
