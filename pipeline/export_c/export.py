"""From a graph that was optimised for C to the texts of C, and to files: the list of steps."""

import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from models.atomic_folders import locked_folder, put_in_place, remove_leftovers
from models.compiler.for_c import GraphForC
from pipeline.export_c.lowering.calls import StepProgram
from pipeline.export_c.lowering.lower import lower
from pipeline.export_c.memory import PlacedMemory, plan_in_bands
from pipeline.export_c.network.network import ExportError, Network, network_of
from pipeline.export_c.network.quantised_network import with_byte_ports, with_tables
from pipeline.export_c.regions import with_bottlenecks, with_views
from pipeline.export_c.writing.api import Api, Inputs, Ports, Weights, api_of, header
from pipeline.export_c.writing.c_text import identifier
from pipeline.export_c.writing.source import SourceWriter
from pipeline.export_c.writing.stored_weights import HEADER_BYTES, plan_loads, store, weights_file

# A folder of files that appears whole or not at all.

Content = bytes | Iterable[str]


def _write_folder(destination: Path, files: Mapping[str, Content], force: bool) -> dict[str, int]:
    """Write ``files`` (bytes, or lines of text) to a new folder; return their sizes.

    What an earlier export wrote there is replaced with ``force``; a folder with anything else in it is not.

    Raises:
        ExportError: the folder exists and ``force`` is not given, has other files, or cannot be written.
    """
    _check_free(destination, files, force)
    destination = Path(os.path.realpath(destination))  # "." has no name, and a link is not replaced
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        with locked_folder(destination.parent, destination.name) as hidden:
            folder = hidden / destination.name
            folder.mkdir()
            sizes = {name: _write(folder / name, content) for name, content in files.items()}
            put_in_place(folder, destination)
    except OSError as exc:
        raise ExportError(f"{destination}: cannot write: {exc.strerror or exc}") from exc
    return sizes


@contextmanager
def working_folder(destination: Path, force: bool) -> Iterator[Path]:
    """Yield an empty folder next to ``destination``, which is gone afterwards.

    Raises:
        ExportError: an export to ``destination`` would be refused, whatever its files are called; or it
            cannot be written.
    """
    parent = Path(os.path.realpath(destination)).parent
    remove_leftovers(parent)
    _check_free(destination, (), force)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with locked_folder(parent, destination.name) as folder:
            yield folder
    except OSError as exc:
        raise ExportError(f"{destination}: cannot write: {exc.strerror or exc}") from exc


def _check_free(destination: Path, files: Iterable[str], force: bool) -> None:
    if not destination.exists():
        return
    if not destination.is_dir():
        raise ExportError(f"{destination}: exists and is no folder")
    present = [f"{path.name}{'/' * _is_folder(path)}" for path in destination.iterdir()]
    stranger = _stranger(present, files)
    if stranger is not None:
        raise ExportError(f"{destination}: has {stranger!r}, which no export wrote; not replaced")
    if not force:
        raise ExportError(f"{destination}: exists; replace what is in it with --force")


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _stranger(present: Sequence[str], files: Iterable[str]) -> str | None:
    """Return the first that is of no export: all of one have one name, that of ``files`` or another."""
    names = sorted({Path(name).stem for name in (*files, *present)})
    strangers = [
        sorted(set(present) - {f"{name}{suffix}" for suffix in (".c", ".h", ".weights")})
        for name in names
    ]
    fewest = min(strangers, key=len, default=[])
    return fewest[0] if fewest else None


def _write(path: Path, content: Content) -> int:
    with path.open("wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            for line in content:
                file.write(f"{line}\n".encode("ascii"))
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size


# The export.


@dataclass(frozen=True)
class ExportOptions:
    """What the user decides.

    ``weights``: constants in the source, or read by a callback into a buffer of at most ``buffer_bytes``
    (None: as large as the compiler's chunks, at most a quarter of the arena). ``ports``: whose memory
    inputs and outputs are. ``prefix``: of all names, None: the file's name. ``inputs``: they lie in memory,
    or a callback brings their rows. ``arena_bytes``: the most that the arena may have; None: the fewest.
    ``byte_ports``: inputs that are quantised first and outputs that are quantised last are bytes.
    """

    weights: Weights = "const"
    ports: Ports = "caller"
    prefix: str | None = None
    buffer_bytes: int | None = None
    inputs: Inputs = "memory"
    arena_bytes: int | None = None
    byte_ports: bool = False


@dataclass(frozen=True)
class Exported:
    """The files by name, what a caller sees, and static bytes: of the arena, of the buffer, of weights."""

    files: dict[str, Content]
    api: Api
    memory: PlacedMemory
    buffer_bytes: int
    weight_bytes: int


def export_c(for_c: GraphForC, options: ExportOptions, tool: str = "layerstream") -> Exported:
    """Return ``for_c`` as C; ``tool``: its name and version, for comments.

    Raises:
        ExportError: something in it cannot become C; the message names the source's node, operator and
            reason.
    """
    try:
        return _exported(for_c, options, tool)
    except ExportError as exc:
        message = str(exc)
        for label in exc.labels:
            message = message.replace(repr(label), repr(for_c.source_label(label)), 1)
        raise ExportError(message) from exc


def _exported(for_c: GraphForC, options: ExportOptions, tool: str) -> Exported:
    source = for_c.source.path
    network = with_tables(network_of(for_c.graph, str(source)), for_c.graph)
    if options.byte_ports:
        network = with_byte_ports(network)
    prefix = options.prefix or identifier(source.stem)
    api = api_of(network, prefix, options.weights, options.ports, options.inputs)
    program = in_regions(network, api.asks)
    inputs, outputs = ([port.name for port in ports] for ports in (api.given, network.outputs))
    inside = options.ports == "arena"
    memory = plan_in_bands(program, inputs, outputs, inside, options.arena_bytes)
    stored = store(memory.steps)
    loads = None
    if api.reads:
        loads = plan_loads(memory.steps, stored, memory.arena_bytes, options.buffer_bytes)
    writer = SourceWriter(api, program, memory, stored, loads)
    file = weights_file(stored) if api.reads else b""
    said = f"{tool}: of {source.name}"
    arena = memory.arena_bytes
    files: dict[str, Content] = {
        f"{api.prefix}.h": [header(api, said, arena, writer.buffer_bytes, stored)],
        f"{api.prefix}.c": writer.lines(said, zlib.crc32(file[HEADER_BYTES:])),
    }
    if api.reads:
        files[f"{api.prefix}.weights"] = file
    return Exported(files, api, memory, writer.buffer_bytes, stored.weight_bytes)


def in_regions(network: Network, asks: bool) -> StepProgram:
    """Return the steps of ``network``, those as one that need less memory so.

    ``asks``: rows of its input are asked for.
    """
    outputs = frozenset(port.name for port in network.outputs)
    inputs = [port.name for port in network.inputs]
    program, views = with_views(lower(network), inputs, outputs, asks)
    return with_bottlenecks(program, outputs, views)


def write_export(exported: Exported, destination: Path, force: bool = False) -> dict[str, int]:
    """Write the files of ``exported`` to the folder ``destination``; return their sizes.

    Raises:
        ExportError: it exists, or cannot be written; then nothing has changed.
    """
    return _write_folder(destination, exported.files, force)
