"""``layerstream bench``: measurements that users can repeat."""

from typing import Annotated, Any

import typer
from rich.progress import Progress

from models.pack import open_pack
from pipeline.benchmark import bench_pipeline
from server.cli.options import Json, PackPath, Ring, Threads, architecture, size
from server.cli.output import console, errors, print_json, print_table
from server.sizes import format_size

app = typer.Typer(help="Measure on this machine.")


@app.callback()
def _group() -> None:
    """Keep ``pipeline`` a subcommand while it is the only one."""


@app.command()
def pipeline(
    pack: PackPath,
    architectures: Annotated[str, typer.Option(help="Names, comma-separated.")] = "pre,seq,2s",
    iterations: Annotated[int, typer.Option(min=1, help="Runs of each, taking turns.")] = 20,
    ring: Ring = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Compare architectures with each other and with ONNX Runtime holding all weights."""
    names = [architecture(name.strip()).name for name in architectures.split(",")]
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("measuring", total=iterations)
        result = bench_pipeline(
            open_pack(pack),
            names,
            iterations,
            size(ring, "--ring"),
            threads,
            lambda done: progress.update(task, completed=done),
        )
    if as_json:
        print_json(result)
        return
    print_table(
        f"{result['model']}, {iterations} runs each, {result['machine']['threads']} threads",
        ("architecture", "weights", "arena", "median ms", "p95 ms", "to pre", "stall ms", "read"),
        (
            (
                row["architecture"],
                format_size(row["weight_bytes"]),
                format_size(row["arena_bytes"]),
                f"{row['delay_ms']['median']:.2f}",
                f"{row['delay_ms']['p95']:.2f}",
                f"{row['ratio_to_pre']:.3f}",
                f"{row['stall_ms']:.2f}",
                format_size(row["read_bytes"]),
            )
            for row in result["rows"]
        ),
    )
    console.print(_energy(result), highlight=False, markup=False, soft_wrap=True)


def _energy(result: dict[str, Any]) -> str:
    """Return the line below the table: what each row took, of which source."""
    medians = (
        f"{row['architecture']} {row['energy_joules']['median']:.3f} J"
        for row in result["rows"]
        if row["energy_joules"]
    )
    return "; ".join((f"energy: {result['energy']}", *medians))
