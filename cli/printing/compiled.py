"""What ``compile`` says of a pack that it has made."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.printing.changes import print_changes
from cli.printing.output import print_json, say, suggest, warn
from cli.printing.sentences import (
    counted,
    serves_from,
    serving,
    stored_as,
    takes,
)
from cli.printing.summary import summary_of
from models.network.names import Op
from models.packs.manifest import Manifest
from models.packs.pack import Pack, read_pack
from models.sizes import format_least, format_size
from pipeline.devices.base import Device

if TYPE_CHECKING:
    from models.compiler.passes.explain import PassChange


def print_compiled(
    folder: Path,
    source: Path,
    cpu: Device,
    chunk_bytes: int | None,
    warnings: list[str],
    changes: "Sequence[PassChange]",
    as_json: bool,
) -> None:
    """Print what users want to know of the pack in ``folder``, made of ``source``, with ``warnings``.

    ``chunk_bytes``: that the user gave. ``changes``: of passes, if they are to be explained.
    """
    from models.graphs.onnx_reader import source_files  # onnx

    pack = read_pack(folder)
    summary = summary_of(pack, cpu)
    warnings += _whole_layers(pack.manifest, chunk_bytes)
    for warning in warnings:
        warn(warning)
    if as_json:
        files = list(map(str, source_files(source)))
        passes = {"passes": list(map(asdict, changes))} if changes else {}
        print_json({**summary, "source_files": files, "warnings": warnings, **passes})
    else:
        print_changes(changes)
        _print_summary(pack, summary)


def _print_summary(pack: Pack, summary: dict[str, Any]) -> None:
    say(
        f"{pack.folder}: {format_size(summary['weight_bytes'])} of weights{_stored(summary)} in "
        f"{counted(summary['spans'], 'span')}, {counted(summary['pieces'], 'piece')}; "
        f"{serves_from(summary)}"
    )
    if summary["costs"]:
        say(f"Requests take there {takes(summary['costs'])}")
    suggest("To serve it", serving(pack, summary["smallest_budget_bytes"]))


def _stored(summary: dict[str, Any]) -> str:
    stored = f" {stored_as(summary['store'])}" if summary["expands"] else ""
    shared = " that layers share," if summary["shared_bytes"] else ""
    if not stored:
        return shared
    return f"{shared or ','} {format_size(summary['file_bytes'])} in the file{stored},"


def _whole_layers(manifest: Manifest, chunk_bytes: int | None) -> list[str]:
    """Return a warning where layers stay whole because of their batch."""
    from models.compiler.cutting.chunks import default_chunk_bytes  # onnx: not for the service

    batches = {port.shape[0] for port in manifest.required_inputs if len(port.shape) > 1}
    finest = chunk_bytes or default_chunk_bytes(manifest.weight_bytes)
    largest = manifest.largest_chunk_bytes
    if len(batches) != 1 or largest <= finest or not _has_batch(manifest, batch := batches.pop()):
        return []
    return [
        f"with a batch of {batch} layers are not cut: the smallest ring holds the largest of them, "
        f"{format_least(largest)}, where chunks of a batch of 1 take about {format_least(finest)}"
    ]


def _has_batch(manifest: Manifest, batch: int) -> bool:
    """Return whether the largest chunk is a layer that would be cut, if it were not for its ``batch``."""
    from models.network.catalogue import traits_of

    uncut = [layer for layer in manifest.layers if layer.end_piece == layer.first_piece + 1]
    largest = max(uncut, key=lambda layer: layer.weight_bytes, default=None)
    if largest is None or batch == 1:
        return False
    traits = traits_of(largest.operator.partition("+")[0])
    output = manifest.pieces[largest.first_piece].outputs[0]
    is_cut = traits.computes(Op.Conv) or traits.computes(Op.Gemm)
    return is_cut and output.shape[:1] == (batch,)
