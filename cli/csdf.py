"""``layerstream csdf``: a pack as a cyclo-static dataflow graph, SDF3's files, and the smallest buffers."""

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer

from cli.arguments import Json
from cli.printing.output import print_facts, print_json, print_table, say, write_text
from cli.printing.sentences import counted
from models.packs.pack import read_pack
from models.sizes import format_size
from papers.cnn.of_pack import cnn_of_pack
from papers.dataflow.consistency import firings
from papers.dataflow.conversion import WindowOverlap, convert
from papers.dataflow.csdf import Capacities, DataflowError, DataflowGraph
from papers.dataflow.schedules import dataflow_arena, schedule
from papers.dataflow.sdf3 import read_sdf3, sdf3_text
from papers.dataflow.smallest_buffers import Buffers, small_buffers
from papers.dataflow.throughput import full_throughput

_XML = ".xml"
_STDOUT = Path("-")


def csdf(
    source: Annotated[
        Path, typer.Argument(help="A pack: REPOSITORY/NAME or .../VERSION; or an SDF3 file, F.xml.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The SDF3 file to write; -: to standard output."),
    ] = None,
    overlap: Annotated[
        Literal["ring", "channel", "loop"],
        typer.Option(
            help="Of a pack: rows that windows share are in the consumer's ring and not counted, in "
            "the channel that brings them, or in channels of their own (the paper's Algorithm 1)."
        ),
    ] = "ring",
    rows: Annotated[
        int, typer.Option(min=0, help="Of a pack: rows that a layer makes in a phase; 0: all.")
    ] = 1,
    throughput: Annotated[
        bool,
        typer.Option("--throughput", help="Find the smallest buffers at full throughput, too."),
    ] = False,
    order: Annotated[
        bool, typer.Option("--schedule", help="Say which task fires when, with those buffers.")
    ] = False,
    channels: Annotated[bool, typer.Option("--channels", help="List every buffer.")] = False,
    as_json: Json = False,
) -> None:
    """Turn a pack into a CSDF graph, or read one. It is for SDF3; the smallest buffers are found."""
    if output == _STDOUT and as_json:
        raise typer.BadParameter("give --json or --output -: both go to standard output")
    graph, counts, element_bytes = _graph(source, WindowOverlap(overlap), rows)
    if output == _STDOUT:
        sys.stdout.write(sdf3_text(graph))
        return
    buffers = small_buffers(graph, counts)
    fired = schedule(graph, counts, buffers.capacities)
    summary = _summary(graph, buffers, fired)
    runs = [(graph.actors[actor].name, len(list(run))) for actor, run in groupby(fired)]
    if element_bytes is not None:
        summary["buffer_bytes"] = element_bytes * summary["minimum_buffers"]
        summary["arena_bytes"] = element_bytes * summary["arena"]
    if throughput:
        fastest = _fastest(source, graph, counts)
        summary["full_throughput_buffers"] = fastest.size
    if output is not None:
        write_text(output, sdf3_text(graph))
        summary["file"] = str(output)
    table = _table(graph, buffers.capacities) if channels else []
    if as_json:
        tables = {"channel_table": table} if channels else {}
        print_json({**summary, **tables, **({"schedule": runs} if order else {})})
        return
    if output is not None:
        say(f"{output}: written")
    print_facts(_facts(summary))
    if channels:
        _print_channels(table)
    if order:
        say(", ".join(name if count == 1 else f"{count} x {name}" for name, count in runs))


def _fastest(source: Path, graph: DataflowGraph, counts: tuple[int, ...]) -> Buffers:
    try:
        return full_throughput(graph, counts)
    except DataflowError as exc:
        raise DataflowError(f"{source}: {exc}") from exc


def _graph(
    source: Path, overlap: WindowOverlap, rows: int
) -> tuple[DataflowGraph, tuple[int, ...], int | None]:
    """Return the graph in a file of SDF3, or of a pack, and how often its actors fire.

    Last, of a pack: the bytes of its largest elements.

    Raises:
        DataflowError: the file is none, or its graph is inconsistent or stops.
    """
    if source.suffix.lower() != _XML:
        manifest = read_pack(source).manifest
        graph = convert(cnn_of_pack(manifest).cnn, overlap, rows)
        known = [np.dtype(value.dtype).itemsize for value in manifest.values if not value.is_loose]
        return graph, firings(graph), max(known, default=1)
    graph = read_sdf3(source)
    try:
        return graph, firings(graph), None
    except DataflowError as exc:
        raise DataflowError(f"{source}: {exc}") from exc


def _summary(graph: DataflowGraph, buffers: Buffers, fired: list[int]) -> dict[str, Any]:
    """Return what is known of ``graph``; sizes are tokens by their size: elements, of a pack."""
    arena = dataflow_arena(graph, buffers.capacities, fired)
    return {
        "name": graph.name,
        "actors": len(graph.actors),
        "channels": len(graph.channels),
        "firings": len(fired),
        "minimum_buffers": buffers.size,
        "lower_bound": buffers.lower_bound,
        "proven": buffers.proven,
        "arena": arena.size,
        "live": arena.live,
    }


def _table(graph: DataflowGraph, capacities: Capacities) -> list[dict[str, Any]]:
    return [
        {
            "name": channel.name,
            "source": graph.actors[channel.source].name,
            "target": graph.actors[channel.target].name,
            "tokens": tokens,
            "token_size": channel.token_size,
        }
        for channel, tokens in zip(graph.channels, capacities, strict=True)
    ]


def _facts(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield (
        "graph",
        f"{summary['name']}: {counted(summary['actors'], 'actor')}, "
        f"{counted(summary['channels'], 'channel')}, "
        f"{counted(summary['firings'], 'firing')} in an iteration",
    )
    least = summary["minimum_buffers"]
    bound = (
        "none are smaller" if summary["proven"] else f"none are below {summary['lower_bound']:,}"
    )
    yield "smallest buffers", f"{counted(least, 'element')}{_bytes(summary, 'buffer')}; {bound}"
    if "full_throughput_buffers" in summary:
        fastest = summary["full_throughput_buffers"]
        yield "at full throughput", counted(fastest, "element")
    yield "in one arena", f"{counted(summary['arena'], 'element')}{_bytes(summary, 'arena')}"
    yield "live at once", counted(summary["live"], "element")


def _bytes(summary: dict[str, Any], what: str) -> str:
    size = summary.get(f"{what}_bytes")
    return "" if size is None else f" ({format_size(size)})"


def _print_channels(table: list[dict[str, Any]]) -> None:
    rows = (
        (row["name"], f"{row['tokens']:,}", f"{row['token_size']}")
        for row in table
        if row["tokens"] is not None
    )
    print_table("Buffers", ("channel", "tokens", "size of each"), rows)
