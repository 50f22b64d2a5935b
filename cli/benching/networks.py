"""Networks that are measured: of the zoo, ONNX files or packs, built and compiled where they must be."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cli.printing.output import warn
from cli.printing.steps import steps
from models.errors import ModelError
from models.packs.pack import Pack, find_pack, open_pack
from pipeline.benchmark.contenders import find_source
from pipeline.execution.errors import InputError


@dataclass(frozen=True)
class Named:
    """A network that a user named. ``path``: of a pack or an ONNX file; None: one of the zoo."""

    name: str
    path: Path | None


def named(name: str, side: int | None) -> Named:
    """Return what ``name`` means: one of the zoo, or else the path of a pack or an ONNX file.

    ``side``: pixels that networks of the zoo are built for. Raises:
        InputError: it is none of these, or takes pixels of its own. PackError: it is a folder and no pack.
    """
    path = Path(name)
    bare = path.name == name and path.suffix != ".onnx"
    unknown = _unknown(name) if bare else ""
    if bare and not unknown:
        if path.exists():
            warn(f"{name}: the network of the zoo; ./{name} is what lies here")
        return Named(name, None)
    if not path.exists():
        hint = f"{unknown}; a pack or an ONNX file is named by its path" if bare else ""
        raise InputError(hint or f"{name}: no such file, nor a pack")
    if side is not None:
        raise InputError(f"{name}: --resolution is of networks of the zoo: this one has its own")
    if path.is_dir():
        find_pack(path)
    return Named(name, path)


def _unknown(name: str) -> str:
    """Return why ``name`` is no network of the zoo, or an empty text."""
    from models import zoo  # onnx: not for the service

    try:
        zoo.find(name)
    except ModelError as exc:
        return str(exc)
    return ""


@contextmanager
def network(given: Named, side: int | None, folder: Path) -> Iterator[tuple[Pack, Path | None]]:
    """Yield what was ``given``, as a pack and as the ONNX file it was compiled from."""
    if given.path is None:
        with built(given.name, side, folder) as found:
            yield found
    elif given.path.is_dir():
        pack = open_pack(given.path)
        yield pack, find_source(pack)
    else:
        with _compiled(given.path, given.path.stem, folder) as pack:
            yield pack, given.path


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
