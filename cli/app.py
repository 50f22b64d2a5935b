"""``layerstream app``: an application of several models, and every way to give it memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.applications import (
    OpenedApplication,
    chromosome_row,
    open_application,
    ours_row,
    papers_rows,
    print_application,
    print_frontier,
)
from cli.arguments import DeviceName, Json, Threads, open_named, size
from cli.printing.output import print_json
from cli.printing.steps import working
from papers.applications.application import Application, ApplicationError
from papers.applications.cost import Chromosome, Evaluator
from papers.applications.ours.frontiers import preloaded_frontier, streaming_frontier
from papers.applications.ours.members import ApplicationMember, Together
from papers.applications.reduction import Constraints, GeneticSettings, Solution, reduce_buffers

_POINTS = 12


def app(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="An application, TOML (docs/research/papers.md).")],
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="At most so much for weights, activations and scratch of all models (M^c).",
        ),
    ] = None,
    throughput: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL=FPS", help="At least so many frames a second (Algorithm 2)."),
    ] = None,
    chromosome: Annotated[
        str | None,
        typer.Option(metavar="GENES", help="Evaluate one: a digit a layer, 0 whole, 1 by rows."),
    ] = None,
    show_frontier: Annotated[
        bool, typer.Option("--frontier", help="Memory against delay, of the search and of ours.")
    ] = False,
    generations: Annotated[int, typer.Option(min=1, max=10_000, help="Of NSGA-II.")] = 40,
    population: Annotated[int, typer.Option(min=4, max=10_000, help="Of NSGA-II.")] = 64,
    seed: Annotated[int, typer.Option(min=0, help="Of NSGA-II.")] = 0,
    device_name: DeviceName = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Show every way to give several models memory. The ways are the papers' and ours."""
    n_bytes = size(budget, "--budget")
    opened, device = open_application(file, partial(open_named, context, device_name), threads)
    evaluator = opened.evaluator()
    constraints = Constraints(n_bytes, _throughputs(opened, throughput or ()))
    genes = None if chromosome is None else _genes(evaluator, chromosome)
    rows_by_way = _Found(papers_rows(evaluator), [], opened.hints)
    if genes is not None:
        rows_by_way.ways.append(chromosome_row(evaluator, genes, "chromosome"))
    with working("searching"):
        members = opened.members(device)
        settings = GeneticSettings(population, generations, seed)
        _search(rows_by_way, evaluator, constraints, settings, required=members is None)
        if members is not None:
            _plan(rows_by_way, opened.application, members, n_bytes)
    document = {
        "application": opened.application.name,
        "models": [cnn.name for cnn in opened.application.cnns],
        "budget_bytes": n_bytes,
        "seed": seed,
        "ways": rows_by_way.ways,
        "hints": rows_by_way.hints,
        **({"frontier": rows_by_way.frontier} if show_frontier else {}),
    }
    if as_json:
        print_json(document)
        return
    print_application(document)
    if show_frontier:
        print_frontier(f"{opened.application.name}: memory against delay", rows_by_way.frontier)


@dataclass
class _Found:
    """Rows of the table, points of the frontier, and hints to the user."""

    ways: list[dict[str, Any]]
    frontier: list[dict[str, Any]]
    hints: list[str]


def _search(
    result: _Found,
    evaluator: Evaluator,
    constraints: Constraints,
    settings: GeneticSettings,
    *,
    required: bool,
) -> None:
    """Add the solutions of Algorithm 2, or a hint why there are none if it is not ``required``.

    Raises:
        ApplicationError: it is required, and nothing meets the constraints.
    """
    try:
        best, front = reduce_buffers(evaluator, constraints, settings)
    except ApplicationError as exc:
        if required:
            raise
        result.hints.append(f"Algorithm 2: {exc}")  # what streams may do with less
        return
    result.ways.append(chromosome_row(evaluator, best.genes, "algorithm-2"))
    result.frontier += [_front_row(item) for item in front]


def _plan(
    result: _Found,
    application: Application,
    members: Sequence[ApplicationMember],
    n_bytes: int | None,
) -> None:
    """Add our plans.

    Raises:
        ApplicationError: not even those that stream fit in ``n_bytes``.
    """
    streaming = streaming_frontier(application, members, _POINTS)
    _check_any(application, streaming, n_bytes)
    preloaded = preloaded_frontier(application, members)
    for way, points in (("ours", preloaded), ("ours-streaming", streaming)):
        chosen = _within(points, n_bytes)
        result.ways += [] if chosen is None else [ours_row(application, chosen, way)]
        result.frontier += [ours_row(application, item, way) for item in points]


def _within(points: list[Together], n_bytes: int | None) -> Together | None:
    """Return the fastest of ``points`` that fits, None: none does; without a budget the smallest one."""
    if n_bytes is None:
        return points[0]
    return max((item for item in points if item.memory_bytes <= n_bytes), key=_size, default=None)


def _size(item: Together) -> int:
    return item.memory_bytes


def _check_any(application: Application, points: list[Together], n_bytes: int | None) -> None:
    """Refuse a budget in which not even plans that stream fit.

    Raises:
        ApplicationError: none does; the message has the smallest.
    """
    if n_bytes is not None and points[0].memory_bytes > n_bytes:
        raise ApplicationError(
            f"{application.name}: no plan takes at most {n_bytes:,} bytes: the smallest takes "
            f"{points[0].memory_bytes:,} and about {1e3 * points[0].seconds:.3g} ms"
        )


def _front_row(item: Solution) -> dict[str, Any]:
    return {
        "way": "algorithm-2",
        "memory_bytes": item.point.memory_bytes,
        "delay_ms": sum(1e3 / each for each in item.point.throughputs),
        "throughputs": list(item.point.throughputs),
        "chromosome": list(item.genes),
    }


def _throughputs(
    opened: OpenedApplication, texts: list[str] | tuple[str, ...]
) -> tuple[float, ...] | None:
    """Return T^c of each CNN.

    Raises:
        typer.BadParameter: one is not MODEL=FPS, or names no model.
    """
    names = [cnn.name for cnn in opened.application.cnns]
    wanted = dict.fromkeys(names, 0.0)
    for text in texts:
        name, _, value = text.rpartition("=")
        if name not in wanted:
            known = ", ".join(names)
            raise typer.BadParameter(
                f"{text[:60]!r}: write MODEL=FPS of {known}", param_hint="--throughput"
            )
        try:
            wanted[name] = _rate(value)
        except ValueError as exc:
            raise typer.BadParameter(
                f"{text[:60]!r}: write a number of frames a second", param_hint="--throughput"
            ) from exc
    return tuple(wanted.values()) if texts else None


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 <= rate < math.inf:
        raise ValueError(text)
    return rate


def _genes(evaluator: Evaluator, text: str) -> Chromosome:
    """Return the genes that ``text`` writes: digits, or rows at a time between commas.

    Raises:
        typer.BadParameter: it is none of this application.
    """
    digits = text.split(",") if "," in text else list(text)
    known = {"0", "1", "2", "4", "8", "16"}
    if len(digits) != evaluator.length or not known.issuperset(digits):
        raise typer.BadParameter(
            f"{text[:60]!r}: write {evaluator.length} genes, each 0, 1, 2, 4, 8 or 16",
            param_hint="--chromosome",
        )
    return tuple(map(int, digits))
