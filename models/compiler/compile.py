"""Compile an ONNX file to a pack: read, optimise, alias, cut, lay out, write."""

import contextlib
import functools
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from models.compiler.cutting.chunks import least_chunk_bytes
from models.compiler.cutting.layout import lay_out
from models.compiler.cutting.meter import Meter
from models.compiler.cutting.scratch import Measure, Sizes, runs_on_cpu
from models.compiler.optimising.exact_sums import largest_signed
from models.compiler.passes.record import Compilation
from models.compiler.passes.run import Observer, run
from models.compiler.passes.table import passes_of, without
from models.compiler.sources import SourceModel, SourceOptions
from models.compiler.writing.configured import configured_sound
from models.compiler.writing.describe import (
    PieceDescriber,
    RowDescriber,
    file_records,
    graph_records,
    layer_records,
    port_records,
    source_record,
    value_records,
)
from models.compiler.writing.describe_programs import ProgramDescriber, QuantisedDescriber
from models.compiler.writing.recipes import recipe_records
from models.compiler.writing.storing import Storing
from models.compiler.writing.texts import text_records
from models.compiler.writing.write import StoreFiles, is_shorter, unstored, write_model
from models.errors import CompileError, PackError
from models.graphs.graph import Graph
from models.graphs.inputs import take_defaults
from models.graphs.traits import infinite_weights
from models.packs.building import Unfinished, building, check_destination
from models.packs.folders import FORMAT_VERSION
from models.packs.manifest import TOKENIZER, Manifest, write_manifest
from models.packs.names import MANIFEST, Store, shape_file
from models.packs.pack import STORE_FILES, read_pack
from models.packs.target import Target, host_target
from models.progress import Progress, silent
from models.runtime.heap import collect
from models.sizes import format_size

# What a user decides of a pack before it is compiled.

#: Judges a finished pack before it is visible in its place: the pack, of several shapes the file of each,
#: and the source as it was read, as a file that ONNX Runtime opens with all weights mapped. It raises to
#: refuse it.
Accept = Callable[[Path, Path], None]


@dataclass(frozen=True)
class CompileOptions(SourceOptions):
    """What the user decides.

    ``chunk_bytes``: None takes the default for the model's size. ``target``: None is this machine's CPU.
    ``measure``: what pieces allocate on the target's device; None: all of them run on the CPU. ``meter``:
    measures those without a formula on the CPU, and stays open; None: one for this compilation.
    ``accept``: None: without a check. ``store``: how weights lie in the file. ``without``: names of
    passes that are left out. ``observers``: look on while passes run. ``same_weights``: a pack of several
    shapes is refused where one has weights of its own.
    """

    version: int = 1
    chunk_bytes: int | None = None
    force: bool = False
    target: Target | None = None
    measure: Measure | None = None
    meter: Meter | None = None
    accept: Accept | None = None
    store: Store = "fp32"
    without: tuple[str, ...] = ()
    observers: tuple[Observer, ...] = ()
    same_weights: bool = False


def _check_options(destination: Path, options: CompileOptions) -> None:
    """Check what was decided for the pack ``destination``, REPOSITORY/NAME.

    Raises:
        CompileError: it cannot be; the message says what.
    """
    if options.store != "fp32" and options.target is not None and options.target.capability:
        raise CompileError(
            f"{destination}: --store {options.store}: a GPU reads weights as they are stored; "
            "without --store, or for the CPU"
        )
    if options.chunk_bytes is not None and options.chunk_bytes < 1:
        raise CompileError(f"{destination}: a chunk of {options.chunk_bytes} bytes holds nothing")


# The compiler, step by step.


def compile_onnx(
    path: Path,
    destination: Path,
    options: CompileOptions | None = None,
    progress: Progress = silent,
) -> Path:
    """Compile the file ``path`` into ``destination``/VERSION and return that folder.

    ``destination`` is REPOSITORY/NAME. ``progress`` is called at each step.

    Raises:
        OnnxError: the file cannot be used.
        CompileError: it cannot be compiled, or the pack cannot be written.
        Whatever ``options.accept`` raises; then there is no pack.
    """
    options = options or CompileOptions()
    pack = destination / str(options.version)
    check_destination(destination, options.version)
    with building(pack, options.force, options.warn) as unfinished:
        sources = write_pack(path, pack, unfinished, options, progress)
        if options.accept is not None:
            for source in sources:
                options.accept(shape_of(source, unfinished), reference_of(source, unfinished))
    return unfinished.destination


def write_pack(
    path: Path, pack: Path, unfinished: Unfinished, options: CompileOptions, progress: Progress
) -> list[SourceModel]:
    """Write what becomes ``pack``; return its source in each shape, whose graphs are let go.

    Raises:
        OnnxError: the file ``path`` cannot be used. CompileError: it cannot be compiled, or not be written.
    """
    _check_options(pack.parent, options)
    sources: list[SourceModel] = []
    manifests: list[Manifest] = []
    store = StoreFiles(unfinished.pack)
    warn = functools.cache(options.warn)  # mostly shapes ask for the same
    while not sources or len(sources) < sources[0].shapes:
        progress("read")
        of_shape = replace(options, choice=len(sources), warn=warn)
        source = SourceModel.read(path, of_shape)
        _tell_infinite(source, of_shape)
        shared_bytes = store.weight_bytes
        try:
            manifests.append(_build(source, pack, of_shape, unfinished, progress, store))
        finally:
            del source.graph  # NFS and FUSE remove no file that is mapped
        if sources:
            _warn_of_added_weights(manifests[-1], store.weight_bytes - shared_bytes, path, of_shape)
        sources.append(source)
    _write_manifests(unfinished.pack, manifests)
    progress("check")
    _read_back(unfinished.pack, pack)
    return sources


def _warn_of_added_weights(
    manifest: Manifest, n_bytes: int, path: Path, options: CompileOptions
) -> None:
    """Warn of ``n_bytes`` of weights that a shape has, and no larger one.

    Raises:
        CompileError: all shapes are to have the same.
    """
    if not n_bytes:
        return
    text = f"{path}: {manifest.shape_text} has {format_size(n_bytes)} of weights of its own"
    if options.same_weights:
        raise CompileError(f"{text}: --same-weights refuses it")
    options.warn(f"{text}, in addition to those of larger shapes")


def _write_manifests(folder: Path, manifests: Sequence[Manifest]) -> None:
    """Write the records of all shapes, that of the largest last: it has the checksums of the others."""
    first, *others = manifests
    records = file_records(folder)
    for index, manifest in enumerate(others, 1):
        files = {
            name: record for name, record in records.items() if name in (*STORE_FILES, TOKENIZER)
        }
        write_manifest(replace(manifest, files=files), folder / shape_file(index))
    write_manifest(replace(first, files=file_records(folder)), folder / MANIFEST)


def shape_of(source: SourceModel, unfinished: Unfinished) -> Path:
    """Return what opens the unfinished pack in the shape of ``source``, as ``Accept`` has it."""
    pack = unfinished.pack
    return pack if source.shapes == 1 else pack / shape_file(source.shape)


def reference_of(source: SourceModel, unfinished: Unfinished) -> Path:
    """Write ``source`` as it was read next to the pack; return the file, as ``Accept`` has it."""
    suffix = f"-{source.shape}" if source.shape else ""
    folder = unfinished.work.with_name(f".reference{suffix}")
    folder.mkdir()
    file = source.write_reference(folder)
    collect()
    return file


def _build(
    source: SourceModel,
    pack: Path,
    options: CompileOptions,
    unfinished: Unfinished,
    progress: Progress,
    store: StoreFiles,
) -> Manifest:
    """Write what ``source`` adds to the ``store`` of the pack; return its record, still without files."""
    unfinished.work.mkdir(exist_ok=True)
    source.check_space(unfinished.work, pack.parent)
    if options.calibrate is not None:
        if options.target is not None and options.target.capability is not None:
            raise CompileError(
                f"{source.path}: 8-bit integers are for CPUs; for GPUs, --precision fp16 when the pack "
                "is run"
            )
        if source.shapes > 1:
            raise CompileError(
                f"{source.path}: 8-bit integers are calibrated for one shape: a pack of each"
            )
        progress("calibrate")
        source.quantise(unfinished.work.with_name(".quantised"))
    with contextlib.nullcontext(options.meter) if options.meter else Meter() as meter:
        manifest = _write_shape(source, options, unfinished, progress, meter, store)
    collect()  # the graph refers to itself, and to files in the work folder
    shutil.rmtree(unfinished.work, ignore_errors=True)
    return manifest


def _write_shape(
    source: SourceModel,
    options: CompileOptions,
    unfinished: Unfinished,
    progress: Progress,
    meter: Meter,
    files: StoreFiles,
) -> Manifest:
    """Write the files of the pack, or what one of its shapes adds; return its record."""
    name = unfinished.destination.parent.name
    target = options.target or host_target()
    folder, path, metadata = unfinished.pack, source.path, source.metadata
    read, defaults = take_defaults(source.graph)
    measure = functools.cache(options.measure or runs_on_cpu)
    work = Compilation(
        source=read,
        path=path,
        folder=unfinished.work,
        target=target,
        finest_bytes=options.chunk_bytes,
        measure=measure,
    )
    passes = without(passes_of(target), options.without)
    before_pieces = [step for step in passes if step.level != "pieces"]
    progress("optimise")
    run(work, before_pieces, progress, observers=options.observers)
    optional = frozenset(defaults)
    recipes = recipe_records(path, work.graph, options, metadata, optional, options.warn)
    texts = text_records(path, read, work.graph, optional, options, options.warn)
    sound, sound_origins = configured_sound(
        options.configs,
        {name: work.graph.array(name) for name in work.graph.inputs if name not in optional},
        lambda text: options.warn(f"{path}: {text}"),
    )
    progress("cut")
    run(work, passes[len(before_pieces) :], progress, observers=options.observers)
    parts = work.divided
    graph, pieces = parts.graph, parts.pieces
    layout = lay_out(graph, pieces)
    progress("write")
    tables = {table.name for piece in pieces if piece.page_checksums for table in piece.weights}
    storing = _storing(graph, target, options, tables)
    spans = files.add_weights(graph, layout, storing)
    store = options.store
    if storing is not None:
        _tell_kept(options, storing)
        if not any(is_shorter(span) for span in spans):
            _tell_unchanged(options)
            spans, store, storing = unstored(spans), "fp32", None
    if storing is None and not source.shape:
        write_model(graph, name, layout, spans, folder / "model.onnx")
    offsets = files.add_graphs(parts.graphs)
    if texts.tokenizer is not None:
        shutil.copyfile(texts.tokenizer, folder / TOKENIZER)
    values = value_records(graph, parts.aliases)
    index = {value.name: position for position, value in enumerate(values)}
    sizes = Sizes(
        graph, measure, meter, functools.cache(lambda text: options.warn(f"{path}: {text}"))
    )
    programs = ProgramDescriber(parts, on_gpu=target.capability is not None)
    quantised = QuantisedDescriber(parts, target)
    describer = PieceDescriber(parts, layout, index, sizes, programs, quantised)
    rows = RowDescriber(parts, layout, index, programs)
    records = describer.pieces()
    others = (
        piece for piece, record in zip(pieces, records, strict=True) if record.quantised is None
    )
    nodes = (node for piece in others for node in graph.nodes[piece.first_node : piece.end_node])
    return Manifest(
        format_version=FORMAT_VERSION,
        name=name,
        target=replace(target, exact_weights=largest_signed(nodes, graph)),
        source=source_record(path),
        files={},
        spans=spans,
        graphs=graph_records(parts, sizes, offsets),
        values=values,
        pieces=records,
        alternatives=describer.alternatives(),
        row_values=rows.values(),
        row_operators=rows.operators(),
        bottlenecks=rows.bottlenecks(),
        programs=programs.programs,  # of all that was described before
        quantised=tuple(quantised.numbers),  # of all pieces that were described before
        layers=layer_records(parts),
        inputs=port_records(graph, graph.inputs, index, defaults),
        outputs=port_records(graph, graph.outputs, index),
        preprocess=recipes.preprocess,
        classification=recipes.classification,
        detection=recipes.detection,
        segmentation=recipes.segmentation,
        depth=recipes.depth,
        text=texts.text,
        sound=sound,
        embedding=texts.embedding,
        origins={**recipes.origins, **texts.origins, **sound_origins},
        source_sizes=metadata.sizes,
        designed=metadata.memory,
        parameters=source.parameters,
        least_chunk_bytes=least_chunk_bytes(graph, pieces, parts.layers(), target),
        store=store,
    )


def _storing(
    graph: Graph, target: Target, options: CompileOptions, tables: Collection[str]
) -> Storing | None:
    """Return how weights are stored, ``tables`` as they are; None: all as kernels read them."""
    dequantised = graph.dequantised
    if target.capability is not None:
        dequantised = dict.fromkeys(dequantised, "a GPU reads weights as they are stored")
    if options.store in ("fp32", "lossless"):
        _tell_floats(options, dequantised)
    given = "" in dequantised.values()
    if options.store == "fp32" and not given:
        return None
    return Storing(graph, target, options.store, tables)


def _tell_floats(options: CompileOptions, dequantised: Mapping[str, str]) -> None:
    """Warn of integers of the source that take four bytes each."""
    names: dict[str, list[str]] = {}
    for name, reason in dequantised.items():
        names.setdefault(reason, []).append(name)
    for reason, (first, *others) in names.items():
        if reason:
            more = f" (and {len(others)} more)" if others else ""
            options.warn(f"weights {first!r}{more} become float32, in the file, too: {reason}")


def _tell_infinite(source: SourceModel, options: CompileOptions) -> None:
    """Warn of weights that are no numbers.

    Raises:
        CompileError: they are to be stored as what holds none.
    """
    for text in infinite_weights(source.graph):
        if options.store not in ("fp32", "lossless"):
            raise CompileError(
                f"{source.path}: {text}: they cannot be stored as {options.store}; --store fp32 or "
                "lossless keeps them"
            )
        options.warn(text)


def _tell_kept(options: CompileOptions, storing: Storing) -> None:
    for name, reason in storing.kept.items():
        options.warn(f"weights of {name!r} stay float32: {reason}, out of range of {options.store}")


def _tell_unchanged(options: CompileOptions) -> None:
    """Warn that nothing is stored otherwise: a stage that copies what it could expand only costs time."""
    if options.store == "fp32":
        return  # the default needs no remark
    only = "" if options.store == "lossless" else ": it is for weights that are computed as float32"
    options.warn(
        f"--store {options.store} makes no weights shorter, so they stay as they are{only}"
    )


def _read_back(folder: Path, pack: Path) -> None:
    """Open the pack in ``folder`` as every command will, before it is called ``pack``.

    Raises:
        CompileError: its reader refuses it.
    """
    try:
        read_pack(folder)
    except PackError as exc:
        message = str(exc).replace(str(folder), str(pack))
        raise CompileError(f"{message}: it was not written; please report this") from exc
