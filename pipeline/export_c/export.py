"""From a pack to the texts of C, and to files: the list of steps."""

import zlib
from dataclasses import dataclass
from pathlib import Path

from models.packs.pack import Pack
from pipeline.export_c.lowering.lower import lower
from pipeline.export_c.lowering.steps import StepProgram
from pipeline.export_c.memory import PlacedMemory, plan_in_bands
from pipeline.export_c.network.byte_ports import with_byte_ports
from pipeline.export_c.network.network import Network
from pipeline.export_c.network.quantised import with_whole_products
from pipeline.export_c.network.reading import read_network
from pipeline.export_c.network.tables import with_tables
from pipeline.export_c.network.unblocking import plain_network
from pipeline.export_c.regions.bottlenecks import with_bottlenecks
from pipeline.export_c.regions.views import with_views
from pipeline.export_c.writing.api import Api, Inputs, Ports, Weights, api_of, header
from pipeline.export_c.writing.folder import Content, write_folder
from pipeline.export_c.writing.names import identifier
from pipeline.export_c.writing.source import SourceWriter
from pipeline.export_c.writing.weights import HEADER_BYTES, plan_loads, store, weights_file


@dataclass(frozen=True)
class ExportOptions:
    """What the user decides.

    ``weights``: constants in the source, or read by a callback into a buffer of at most ``buffer_bytes``
    (None: as large as the compiler's chunks, at most a quarter of the arena). ``ports``: whose memory
    inputs and outputs are. ``prefix``: of all names, None: the pack's name. ``inputs``: they lie in memory,
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


def export_c(pack: Pack, options: ExportOptions, made_by: str = "layerstream") -> Exported:
    """Return ``pack`` as C; ``made_by``: the tool and its version, for comments.

    Raises:
        ExportError: something in it cannot become C; the message names node, operator and reason.
    """
    network = standard_network(pack)
    if options.byte_ports:
        network = with_byte_ports(network)
    prefix = options.prefix or identifier(pack.name)
    api = api_of(network, prefix, options.weights, options.ports, options.inputs)
    program = in_regions(network, api.asks)
    inputs, outputs = ([port.name for port in ports] for ports in (api.given, network.outputs))
    inside = options.ports == "arena"
    memory = plan_in_bands(program, inputs, outputs, inside, options.arena_bytes)
    stored = store(memory.steps)
    loads = None
    if api.reads:
        loads = plan_loads(memory.steps, stored, memory.arena_bytes, options.buffer_bytes)
    source = SourceWriter(api, program, memory, stored, loads)
    file = weights_file(stored) if api.reads else b""
    said = f"{made_by}: {pack.name}, version {pack.version}, of {pack.manifest.source.file}"
    arena = memory.arena_bytes
    files: dict[str, Content] = {
        f"{api.prefix}.h": [header(api, said, arena, source.buffer_bytes, stored)],
        f"{api.prefix}.c": source.lines(said, zlib.crc32(file[HEADER_BYTES:])),
    }
    if api.reads:
        files[f"{api.prefix}.weights"] = file
    return Exported(files, api, memory, source.buffer_bytes, stored.weight_bytes)


def in_regions(network: Network, asks: bool) -> StepProgram:
    """Return the steps of ``network``, those as one that need less memory so.

    ``asks``: rows of its input are asked for.
    """
    outputs = frozenset(port.name for port in network.outputs)
    inputs = [port.name for port in network.inputs]
    program, views = with_views(lower(network), inputs, outputs, asks)
    return with_bottlenecks(program, outputs, views)


def standard_network(pack: Pack) -> Network:
    """Return the network of ``pack`` in standard operators on plain tensors."""
    network = with_tables(read_network(pack))
    whole = with_whole_products(network, pack.manifest.window_products)
    return plain_network(whole, pack.manifest)


def write_export(exported: Exported, destination: Path, force: bool = False) -> dict[str, int]:
    """Write the files of ``exported`` to the folder ``destination``; return their sizes.

    Raises:
        ExportError: it exists, or cannot be written; then nothing has changed.
    """
    return write_folder(destination, exported.files, force)
