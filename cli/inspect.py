"""``layerstream inspect``: what is in a pack, what it needs, and what computes each layer."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any

import typer

from cli.arguments import Json, PackPath, open_named
from cli.printing.output import print_facts, print_json, print_table, say, suggest
from cli.printing.sentences import (
    DESIGNED,
    bottlenecks,
    counted,
    designed,
    designed_layer,
    detector,
    given,
    in_all,
    less_for_pictures,
    machine,
    network_size,
    one_shape,
    operators_alone,
    operators_on_elements,
    picture,
    profiling,
    resident,
    segmenter,
    serving,
    sounds,
    source,
    stored,
    takes,
    tensor,
    texts,
    typed,
    unrolled,
    vectors,
)
from cli.printing.steps import planning
from cli.printing.summary import evaluated, summary_of
from cli.printing.tables import KIB
from loader.native.compiling import LibraryError
from models.network.catalogue import traits_of
from models.network.names import PLAIN_DOMAINS, named
from models.packs.manifest import Manifest
from models.packs.pack import Pack, read_pack
from models.packs.records.pieces import Layer
from models.packs.records.ports import DesignedMemory
from models.packs.records.spans import Encoding
from models.sizes import format_least, format_size
from pipeline.devices.elementwise.library import Library, find_library
from pipeline.devices.elementwise.operator_node import why_not_shared
from pipeline.devices.elementwise.programs import native_program
from pipeline.devices.find import Kernels, cuda_kernels
from pipeline.devices.names import check_name
from pipeline.evaluating.results_file import read_results
from pipeline.execution.errors import InputError
from pipeline.profiles.profile_file import FILE as PROFILE
from pipeline.profiles.profile_file import disturbance, profile_name
from server.errors import few

#: What people call encodings.
_STORED_AS: dict[Encoding, str] = {
    "bytes": "as it is",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "planes": "lossless",
}


def inspect(
    context: typer.Context,
    pack: PackPath,
    layers: Annotated[bool, typer.Option("--layers", help="List every layer.")] = False,
    device: Annotated[
        str, typer.Option(help="cuda: show the kernels of each layer, and what stays on the CPU.")
    ] = "cpu",
    as_json: Json = False,
) -> None:
    """Show what a pack holds and needs; nothing is run."""
    opened = read_pack(pack)
    with planning():
        summary = summary_of(opened, open_named(context, "cpu"))
    summary["one_pass"] = _one_pass(opened)
    summary["evaluations"] = read_results(opened.folder)
    table = _table(opened, device)
    on_cpu = [row for row in table if row.get("cpu")]
    if device != "cpu":
        summary["layers_on_cpu"] = len(on_cpu)
    if as_json:
        print_json({**summary, "layer_table": table} if layers or device != "cpu" else summary)
        return
    print_facts(_facts(opened, summary))
    say("")
    if not (opened.folder / profile_name(opened.shape_index)).exists():
        suggest("To measure it here", profiling(opened))
    suggest("To serve it", serving(opened, summary["smallest_budget_bytes"]))
    for line in (*map(resident, opened.manifest.resident_pieces), *map(_cpu_line, on_cpu)):
        say(line)
    if layers or device != "cpu":
        say("")
        _print_layers(table)
        if opened.manifest.designed:
            say("")
            _print_designed(opened.manifest.designed)


def _facts(pack: Pack, summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield facts of the pack: its network and needs, then inputs and outputs, then how it runs."""
    manifest, least = pack.manifest, summary["smallest_budget_bytes"]
    yield "model", f"{pack.name}, version {pack.version}, in {pack.folder}"
    yield (
        "weights",
        network_size(
            *(summary["weight_bytes"], summary["layers"], summary["largest_layer_bytes"]),
            manifest.parameters,
            counts="of the graph that ONNX Runtime optimised",
        ),
    )
    if manifest.expands:
        yield "stored", stored(manifest)
    if summary["shared_bytes"]:
        yield "shared", f"{format_size(summary['shared_bytes'])} more where layers read them again"
    alone = "where it is served alone"
    yield "budget", f"from {typed(least)} up, {alone}{less_for_pictures(summary)}{in_all(summary)}"
    if summary["costs"]:
        yield "takes there", takes(summary["costs"])
    yield "profile", _profile(pack)
    yield from (("shape", one_shape(shape)) for shape in summary["shapes"])
    yield from (("input", given(port)) for port in pack.inputs)
    if manifest.preprocess:
        yield "pictures", picture(manifest.preprocess) + _origin(manifest, "preprocess")
    if manifest.text:
        yield "texts", texts(manifest.text) + _origin(manifest, "max_tokens")
        tokenizer_bytes = format_size(manifest.text.memory_bytes)
        yield "tokenizer", f"takes {tokenizer_bytes}{_origin(manifest, 'tokenizer')}"
    if manifest.sound:
        yield "sounds", sounds(manifest.sound) + _origin(manifest, "sound")
    for port in pack.outputs:
        yield "output", f"{port.name}: {tensor(port)}"
    yield from _found(manifest)
    yield "runs on", machine(manifest.target)
    if manifest.source_sizes:
        yield "source", source(manifest.source_sizes)
    if manifest.designed:
        yield "designed", designed(manifest.designed)
    yield from _how(summary)
    for result in summary["evaluations"]:
        yield f"on {result['dataset']}", evaluated(result)


def _found(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield facts about a model's answers to a picture."""
    if manifest.detection:
        yield "detects", detector(manifest.detection) + _origin(manifest, "detection")
    if manifest.embedding:
        yield "vectors", vectors(manifest, manifest.embedding) + _origin(manifest, "embedding")
    if manifest.segmentation:
        yield "segments", segmenter(manifest.segmentation) + _origin(manifest, "segmentation")
    if manifest.depth:
        yield "depth", manifest.depth.output + _origin(manifest, "depth")
    named = manifest.named
    if named and named.labels:
        labels = f"{len(named.labels):,}: {few(list(named.labels), '; ')}"
        yield "labels", labels + _origin(manifest, "labels")


def _origin(manifest: Manifest, field: str) -> str:
    """Return where the recipe or the labels come from, in brackets; of older packs nothing."""
    return f" ({manifest.origins[field]})" if field in manifest.origins else ""


def _how(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield how the weights stream, and what else takes memory."""
    chunk, joined = summary["largest_chunk_bytes"], summary["largest_joined_bytes"]
    alike = "" if joined == chunk else f", or {format_least(joined)} where chunks are joined"
    yield (
        "streams",
        f"in {counted(summary['pieces'], 'piece')} of {counted(summary['sessions'], 'kind')}, "
        f"{counted(summary['spans'], 'span')}; the smallest ring takes {format_least(chunk)}{alike}",
    )
    yield (
        "beside them",
        f"activations {format_size(summary['arena_bytes'])}, scratch "
        f"{format_size(summary['scratch_bytes'])}, ONNX Runtime's sessions "
        f"{format_size(summary['session_bytes'])}",
    )
    if summary["unrolled"]:
        yield "unrolled", unrolled(summary["unrolled"])
    if summary["tables"]:
        sizes = few([format_size(n_bytes) for n_bytes in summary["tables"]], ", ")
        yield "tables", f"{sizes}: rows are read as a request needs them"
    if summary["bottlenecks"]:
        yield "bottlenecks", bottlenecks(summary["bottlenecks"])
    one_pass = dict(summary["one_pass"])
    alone = one_pass.pop("alone")
    if one_pass["pieces"]:
        yield "in one pass", operators_on_elements(summary["pieces"], **one_pass)
    if alone:
        yield "unfused", operators_alone(alone)
    if "layers_on_cpu" in summary:
        yield "on the CPU", f"{summary['layers_on_cpu']} of {summary['layers']} layers"


def _one_pass(pack: Pack) -> dict[str, Any]:
    """Return how many pieces a CPU runs in one pass, and with which kernels, or why there are none."""
    library, manifest = find_library(), pack.manifest
    on_cpu = manifest.target.capability is None
    programs = [
        native_program(manifest.programs[piece.elementwise.program])
        for piece in manifest.pieces
        if on_cpu and piece.elementwise is not None
    ]
    return {
        "pieces": len(programs) - programs.count(None),
        "alone": _alone(manifest) if on_cpu else 0,
        "kernels": library.processor if isinstance(library, Library) else None,
        "missing": str(library) if isinstance(library, LibraryError) else None,
        "not_shared": why_not_shared(library.path) if isinstance(library, Library) else None,
    }


def _alone(manifest: Manifest) -> int:
    """Return how many pieces are one operator on elements, which ONNX Runtime computes in one pass, too."""
    ranges = Counter((layer.first_piece, layer.end_piece) for layer in manifest.layers)
    return sum(
        piece.elementwise is None and piece.resident is None
        for layer in manifest.layers
        if _is_on_elements(layer.operator) and ranges[layer.first_piece, layer.end_piece] == 1
        for piece in manifest.pieces[layer.first_piece : layer.end_piece]
    )


def _is_on_elements(op_type: str) -> bool:
    """Return whether ``op_type``, of a domain that a manifest does not say, is a function of elements."""
    return any(traits_of(named(domain, op_type)).function for domain in PLAIN_DOMAINS)


def _profile(pack: Pack) -> str:
    """Return whether there is a profile; only a device could say whether it holds here."""
    if not (pack.folder / PROFILE).exists():
        return "none, so plans follow estimates"
    disturbed = disturbance(pack.folder)
    return f"{PROFILE}, {disturbed}" if disturbed else PROFILE


def _table(pack: Pack, device: str) -> list[dict[str, Any]]:
    """Return a row for each layer, with its kernels where ``device`` is one of CUDA's.

    Raises:
        typer.BadParameter: there is no such device. InputError: the pack is not for it.
    """
    try:
        check_name(device)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--device") from exc
    rows = [
        {
            "name": layer.name,
            "operator": layer.operator,
            "weight_bytes": layer.weight_bytes,
            **_stored(pack.manifest, layer),
            "pieces": layer.end_piece - layer.first_piece,
            "rows": _rows(pack.manifest, layer),
        }
        for layer in pack.manifest.layers
    ]
    if device == "cpu":
        return rows
    if pack.manifest.target.capability is None:
        raise InputError(
            f"{pack.folder}: compiled for {pack.manifest.target.isa}, not for CUDA; "
            "compile the source with --target cuda-sm72 or the like"
        )
    kernels = cache(cuda_kernels)
    return [
        row | _kernels(pack, layer, kernels)
        for row, layer in zip(rows, pack.manifest.layers, strict=True)
    ]


def _rows(manifest: Manifest, layer: Layer) -> str:
    """Return whether ``layer`` can run on rows, and how near its numbers then are; "": only whole."""
    exact = [
        item.exact
        for item in manifest.row_operators
        if item.first_piece < layer.end_piece and layer.first_piece < item.end_piece
    ]
    if not exact:
        return ""
    return "same bits" if all(exact) else "within 1e-6"


def _stored(manifest: Manifest, layer: Layer) -> dict[str, Any]:
    """Return how the spans of ``layer`` are stored, largest part first, and what they take in the file."""
    pieces = manifest.pieces[layer.first_piece : layer.end_piece]
    spans = [manifest.spans[piece.span] for piece in pieces if piece.span is not None]
    lengths: Counter[str] = Counter()
    for span in spans:
        for part in span.stored.parts if span.stored else ():
            lengths[_STORED_AS[part.encoding]] += part.length
    return {
        "stored": ", ".join(name for name, _ in lengths.most_common()),
        "file_bytes": sum(span.file_length for span in spans),
    }


def _kernels(pack: Pack, layer: Layer, kernels: Any) -> dict[str, Any]:
    """Return the kernels of the first piece of ``layer``, or why it runs on the CPU."""
    piece = pack.manifest.pieces[layer.first_piece]
    if piece.resident is not None:
        return {"kernels": [], "cpu": "; ".join(piece.resident.reasons)}
    chosen: Kernels = kernels(pack.graphs[piece.graph])
    return {"kernels": list(chosen.names), "cpu": chosen.reason}


def _cpu_line(row: dict[str, Any]) -> str:
    return f"on the CPU, between copies: {row['name']} ({row['operator']}): {row['cpu']}"


def _print_designed(memory: DesignedMemory) -> None:
    columns = ("layer", "numbers", *DESIGNED, "counted by")
    print_table("Memory as designed", columns, map(designed_layer, memory.layers))


def _print_layers(table: list[dict[str, Any]]) -> None:
    has_kernels = any("kernels" in row for row in table)
    # KiB: of a network of a gigabyte most layers have less than a hundredth of a MiB.
    is_stored = any(row["stored"] for row in table)
    stored = ("stored as", KIB.head("in the file")) if is_stored else ()
    kernels = ["kernels"] * has_kernels
    columns = ("layer", "operator", KIB.head("weights"), *stored, "pieces", "rows", *kernels)

    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        in_file = (row["stored"], KIB.show(row["file_bytes"])) if is_stored else ()
        weights = KIB.show(row["weight_bytes"])
        shown = (row["name"], row["operator"], weights, *in_file, str(row["pieces"]), row["rows"])
        return (*shown, ", ".join(row["kernels"]) or "CPU") if has_kernels else shown

    print_table("Layers", columns, map(cells, table))
