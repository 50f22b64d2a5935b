"""``layerstream inspect``: what is in a pack, what it needs, and what computes each layer."""

from functools import cache
from typing import Annotated, Any

import typer

from models.manifest import Layer, Resident, SourceSizes
from models.pack import Pack, read_pack
from pipeline.devices.find import check_name
from pipeline.devices.lowered import Kernels, cuda_kernels
from pipeline.errors import InputError
from server.cli.options import Json, PackPath
from server.cli.output import console, print_json, print_table
from server.cli.packs import summary_of
from server.sizes import format_least, format_size

_SHOWN = 5
#: The smallest budget; the smallest rings of fine chunks and of joined ones.
_MINIMA = ("smallest_budget_bytes", "largest_chunk_bytes", "largest_joined_bytes")


def inspect(
    pack: PackPath,
    layers: Annotated[bool, typer.Option("--layers", help="List every layer.")] = False,
    device: Annotated[
        str, typer.Option(help="cuda: show the kernels of each layer, and what stays on the CPU.")
    ] = "cpu",
    as_json: Json = False,
) -> None:
    """Show what a pack holds and what it needs; no device is touched."""
    opened = read_pack(pack)
    summary = summary_of(opened)
    table = _table(opened, device)
    on_cpu = [row for row in table if row.get("cpu")]
    if device != "cpu":
        summary["layers_on_cpu"] = len(on_cpu)
    if as_json:
        print_json({**summary, "layer_table": table} if layers or device != "cpu" else summary)
        return
    resident = [_resident_line(piece) for piece in opened.manifest.resident_pieces]
    summary["resident_pieces"] = len(resident)
    sizes = opened.manifest.source_sizes
    summary["source_sizes"] = sizes and _source_line(sizes)
    for key, value in summary.items():
        shown = _shown(key, value)
        console.print(f"{key:>22}  {shown}", highlight=False, soft_wrap=True)
    for line in (*resident, *map(_cpu_line, on_cpu)):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if layers or device != "cpu":
        _print_layers(table)


def _shown(key: str, value: Any) -> Any:
    """Return ``value`` for people; what is a minimum is enough when it is typed back."""
    if not key.endswith("_bytes"):
        return value
    return format_least(value) if key in _MINIMA else format_size(value)


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
            "pieces": layer.end_piece - layer.first_piece,
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


def _kernels(pack: Pack, layer: Layer, kernels: Any) -> dict[str, Any]:
    """Return the kernels of the first piece of ``layer``, or why it runs on the CPU."""
    piece = pack.manifest.pieces[layer.first_piece]
    if piece.resident is not None:
        return {"kernels": [], "cpu": "; ".join(piece.resident.reasons)}
    found: Kernels = kernels(pack.graphs[piece.graph])
    return {"kernels": list(found.names), "cpu": found.reason}


def _cpu_line(row: dict[str, Any]) -> str:
    return f"on the CPU, between copies: {row['name']} ({row['operator']}): {row['cpu']}"


def _print_layers(table: list[dict[str, Any]]) -> None:
    has_kernels = any("kernels" in row for row in table)
    columns = ("name", "operator", "weights", "pieces", *(("kernels",) if has_kernels else ()))

    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        shown = (row["name"], row["operator"], format_size(row["weight_bytes"]), str(row["pieces"]))
        return (*shown, ", ".join(row["kernels"]) or "CPU") if has_kernels else shown

    print_table("Layers", columns, map(cells, table))


def _source_line(sizes: SourceSizes) -> str:
    """Return what the tool that the network comes from counts, in one line."""
    return (
        f"{sizes.tool} counts {sizes.layers} layers, {format_size(sizes.weight_bytes)} of weights, "
        f"{format_size(sizes.largest_layer_bytes)} in the largest layer"
    )


def _resident_line(piece: Resident) -> str:
    """Return what is not streamed and why, in one line."""
    operators = ", ".join(_some(list(dict.fromkeys(piece.operators))))
    reasons = "; ".join(_some(list(piece.reasons)))
    count = len(piece.nodes)
    nodes = f"{count} node{'s' if count > 1 else ''}"
    size = format_size(piece.weight_bytes)
    return f"resident piece: {nodes} ({operators}), {size}, because: {reasons}"


def _some(items: list[str]) -> list[str]:
    rest = len(items) - _SHOWN
    return items if rest <= 0 else [*items[:_SHOWN], f"{rest} more"]
