"""Networks that are measured: of the zoo, ONNX files or packs, built and compiled where they must be."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from models.packs.pack import Pack, open_pack
from pipeline.benchmark.source import find_source
from pipeline.execution.errors import InputError
from server.cli.printing.steps import steps


@contextmanager
def network(name: str, side: int | None, folder: Path) -> Iterator[tuple[Pack, Path | None]]:
    """Yield what ``name`` means, as a pack and as the ONNX file it was compiled from."""
    path = Path(name)
    if path.is_dir():
        pack = open_pack(path)
        yield pack, find_source(pack)
    elif path.is_file():
        with _compiled(path, path.stem, folder) as pack:
            yield pack, path
    elif path.name != name or path.suffix == ".onnx":
        raise InputError(f"{name}: no such file, nor a pack")
    else:
        with built(name, side, folder) as found:
            yield found


@contextmanager
def built(name: str, side: int | None, folder: Path) -> Iterator[tuple[Pack, Path]]:
    """Yield a network of the zoo as a pack and as the ONNX file it was compiled from."""
    from models import zoo  # onnx: not for the service

    with _scratch(folder) as place:
        source = place / f"{zoo.find(name).name}.onnx"
        with steps(f"{name} at {side} px" if side else name) as progress:
            zoo.build(name, source, side, progress=progress)
        with _compiled(source, source.stem, place) as pack:
            yield pack, source


@contextmanager
def _compiled(source: Path, name: str, folder: Path) -> Iterator[Pack]:
    """Yield the pack of ``source``, which goes again."""
    from models.compiler import compile_onnx  # onnx: not for the service

    with _scratch(folder) as place, steps(name) as progress:
        yield open_pack(compile_onnx(source, place / name, progress=progress))


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    try:
        scratch = tempfile.TemporaryDirectory(prefix="layerstream-bench-", dir=folder)
    except OSError as exc:
        raise InputError(f"{folder}: {exc.strerror or exc}") from exc
    with scratch as place:
        yield Path(place)
