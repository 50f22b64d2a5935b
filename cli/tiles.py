"""``layerstream tiles``: groups of layers fused and computed by tiles, after seed 002."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from cli.arguments import Json, PackPath, Threads, open_named, size
from cli.printing.output import print_json, print_table, say
from cli.printing.steps import working
from cli.printing.tables import number, unit_of_rows
from models.packs.pack import open_pack
from papers.tiles.fused_groups import TileConfiguration, parse
from papers.tiles.fused_pack import FusedPack
from papers.tiles.predictor import paper_predict
from papers.tiles.tiling_search import paper_candidates

_SIZES = ("predicted_bytes", "planned_bytes", "darknet_bytes")


class TileSearch(StrEnum):
    """Ways to search for a configuration: Algorithm 3, or any cuts on many tilings with reuse."""

    PAPER = "paper"
    WIDE = "wide"


def tiles(
    context: typer.Context,
    pack: PackPath,
    limit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Less memory than this, beside the process.")
    ] = None,
    written: Annotated[
        str | None,
        typer.Option(
            "--tiles",
            metavar="CONFIGURATION",
            help="As 5x5/8/2x2 or '3x3/NoCut raster' (docs/research/tiles.md).",
        ),
    ] = None,
    search: Annotated[
        TileSearch | None,
        typer.Option(help="Find one for --limit: Algorithm 3, or the wider search."),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Run it, and measure memory, delay and bits.")
    ] = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Fuse groups of layers on tiles, and measure them. Their memory is predicted and searched for.

    Without --tiles and --search it shows the configurations that Algorithm 3 tries. No plan takes tiles.
    """
    limit_bytes = size(limit, "--limit")
    if written is not None and search is not None:
        raise typer.BadParameter("give --tiles or --search")
    if search is not None and limit_bytes is None:
        raise typer.BadParameter("--search finds one for --limit: give that, too")
    if run and written is None and search is None:
        raise typer.BadParameter("--run is of one configuration: give --tiles or --search")
    device = open_named(context, "cpu", threads)
    opened = open_pack(pack, device.target)
    with working(f"tiling {opened.name}"):
        fused = FusedPack(opened, device)
        configurations = _configurations(fused, written, search, limit_bytes)
        rows = [_row(fused, item, limit_bytes) for item in configurations]
        ran = _ran(fused, configurations[0]) if run else None
    document = {
        "model": opened.name,
        "layers": [layer.name for layer in fused.layers],
        "limit_bytes": limit_bytes,
        "bias_bytes": fused.bias_bytes,
        "rows": rows,
        **({} if ran is None else {"run": ran}),
    }
    if as_json:
        print_json(document)
    else:
        _print(document)


def _configurations(
    fused: FusedPack, written: str | None, search: TileSearch | None, limit_bytes: int | None
) -> list[TileConfiguration]:
    if written is not None:
        return [parse(written, len(fused.layers))]
    if search is None or limit_bytes is None:
        return list(paper_candidates(len(fused.layers)))
    by = fused.by_paper if search is TileSearch.PAPER else fused.by_wide_search
    return [by(limit_bytes)]


def _row(
    fused: FusedPack, configuration: TileConfiguration, limit_bytes: int | None
) -> dict[str, Any]:
    predicted, plan = fused.predicted(configuration), fused.plan(configuration)
    return {
        "configuration": str(configuration),
        "predicted_bytes": predicted,
        "planned_bytes": plan.total_bytes,
        "darknet_bytes": paper_predict(fused.layers, configuration),
        "macs_ratio": plan.as_dict()["macs_ratio"],
        "fits": None if limit_bytes is None else predicted < limit_bytes,
    }


def _ran(fused: FusedPack, configuration: TileConfiguration) -> dict[str, Any]:
    tiled, whole = fused.run(fused.plan(configuration)), fused.run_whole()
    return {
        "measured_bytes": tiled.n_bytes,
        "delay_ms": 1e3 * tiled.seconds,
        "whole_delay_ms": 1e3 * whole.seconds,
        "same_bits": tiled.answers == whole.answers,
    }


def _print(document: dict[str, Any]) -> None:
    rows = document["rows"]
    unit = unit_of_rows(rows, *_SIZES)
    print_table(
        f"{document['model']}: {len(document['layers'])} layers, memory beside the process",
        (
            "configuration",
            *map(unit.head, ("predicted", "plan", "Darknet")),
            *("MACs", "fits"),
        ),
        (
            (
                row["configuration"],
                *(unit.show(row[key]) for key in _SIZES),
                f"{row['macs_ratio']:.3f}",
                {None: "-", True: "yes", False: "no"}[row["fits"]],
            )
            for row in rows
        ),
    )
    if "run" in document:
        ran = document["run"]
        bits = "the bits" if ran["same_bits"] else "OTHER bits than those"
        say(
            f"measured: {unit.show(ran['measured_bytes'])} {unit.name}, {number(ran['delay_ms'])} ms, "
            f"{bits} of the whole network, which took {number(ran['whole_delay_ms'])} ms"
        )
