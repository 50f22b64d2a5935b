"""From a CSDF graph to what the engine runs, and back: regions, and the schedules that their phases are.

A layer that makes r rows a phase is a row operator of a region; the engine's phases say in which order the
operators run and how many rows each makes (pipeline/program/). That order must be an admissible schedule
of the region as a CSDF graph, within buffers no larger than the strips that the plan gives it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from papers.cnn.layers import Cnn, Edge
from papers.cnn.of_pack import PackCnn
from papers.dataflow.conversion import WindowOverlap, graph_of, row_elements
from papers.dataflow.csdf import DataflowGraph
from papers.dataflow.schedules import Moment, moments
from pipeline.program.program import Program
from pipeline.program.region_plan import (
    AreaCopy,
    GraphCall,
    Region,
    RegionError,
    RegionPlan,
    RowCut,
)
from pipeline.program.steps import planned_region, row_network


def row_regions(program: Program, rows: int = 1) -> tuple[Region, ...]:
    """Return regions that run all of ``program`` on ``rows`` rows that can: its r-row CSDF graph.

    They are as long as possible, from the first piece on.
    """
    network = row_network(program)
    places = sorted(network.places)
    found: list[Region] = []
    for run in network.runs:
        start = run.start
        while start < run.stop:
            ends = (place for place in reversed(places) if start < place <= run.stop)
            region = _longest(program, start, ends, rows)
            found += [region] if region else []
            later = (place for place in places if place > start)
            start = region.end_piece if region else next(later, run.stop)
    return tuple(found)


def _longest(program: Program, start: int, ends: Iterable[int], rows: int) -> Region | None:
    for end in ends:
        region = Region(start, end, RowCut(rows))
        try:
            planned_region(program, region)
        except RegionError:
            continue
        return region
    return None


@dataclass(frozen=True)
class RegionSchedule:
    """A region as a CSDF graph: its actors fire in ``order``, ``capacities`` are what strips hold.

    What the region reads from outside are actors that fire once, at the beginning: it lies there whole.
    """

    graph: DataflowGraph
    counts: tuple[int, ...]
    capacities: tuple[int | None, ...]
    order: tuple[int, ...]

    def moments(self) -> Iterator[Moment]:
        """Fire as the engine does.

        Raises:
            DataflowError: that is no admissible schedule, or needs larger buffers.
        """
        return moments(self.graph, self.counts, self.capacities, self.order)


def region_schedule(program: Program, pack_cnn: PackCnn, region: Region) -> RegionSchedule:
    """Return what the engine does in ``region`` as a schedule of a CSDF graph."""
    plan = planned_region(program, region)
    cnn, number_of = _part(pack_cnn, plan.operators)
    layer_of = {operator: number_of[pack_cnn.layer_of[operator]] for operator in plan.operators}
    inside = set(layer_of.values())
    phases: list[list[tuple[int, int]]] = [
        [] if number in inside else [(0, layer.output.height)]
        for number, layer in enumerate(cnn.layers)
    ]
    order = [number for number in range(len(cnn.layers)) if number not in inside]
    for call in (
        action for phase in plan.phases for action in phase if isinstance(action, GraphCall)
    ):
        layer = layer_of[call.operator]
        first = phases[layer][-1][1] if phases[layer] else 0
        phases[layer].append((first, first + call.output.rows))
        order.append(layer)
    graph = graph_of(cnn, phases, WindowOverlap.CHANNEL, cropped=True)
    held_rows = _held_rows(program, plan)
    rows = [cnn.layers[number].output.height for number in range(len(cnn.layers))]
    for operator, layer in layer_of.items():
        rows[layer] = held_rows[program.row_operators[operator].output]
    edge_of = {(edge.source, edge.target): edge for edge in cnn.edges}
    capacities = tuple(
        _room(cnn, edge_of[channel.source, channel.target], rows[channel.source])
        if channel.token_size
        else None
        for channel in graph.channels
    )
    return RegionSchedule(graph, tuple(map(len, phases)), capacities, tuple(order))


def _room(cnn: Cnn, edge: Edge, rows: int) -> int:
    """Return the elements of ``rows`` rows that the engine holds for an edge.

    Rows between two windows are in the channel until the next firing takes them, in the engine nowhere; so
    are those before and behind a crop.
    """
    window = cnn.window(edge)
    skipped = max(window.stride - window.reach, 0)
    cropped = max(-window.before, 0) + max(-window.behind, 0)
    return (rows + skipped + cropped) * row_elements(cnn, edge)


def _part(pack_cnn: PackCnn, operators: range) -> tuple[Cnn, dict[int, int]]:
    """Return the CNN of ``operators`` and of what they read, and the numbers of its layers in it."""
    cnn = pack_cnn.cnn
    inside = {pack_cnn.layer_of[operator] for operator in operators}
    edges = [edge for edge in cnn.edges if edge.target in inside]
    layers = sorted(inside | {edge.source for edge in edges})
    number_of = {layer: number for number, layer in enumerate(layers)}
    moved = tuple(
        replace(edge, source=number_of[edge.source], target=number_of[edge.target])
        for edge in edges
    )
    return Cnn(cnn.name, tuple(cnn.layers[layer] for layer in layers), moved), number_of


def _held_rows(program: Program, plan: RegionPlan) -> dict[int, int]:
    """Return how many rows of each value the region's memory holds: new ones, and those that are kept.

    What is read outside of the region lies whole.
    """
    strips: dict[int, set[int]] = {}
    for action in (action for phase in plan.phases for action in phase):
        areas = []
        if isinstance(action, GraphCall):
            areas.append(action.output)
        elif isinstance(action, AreaCopy) and action.target.strip is not None:
            kept = plan.strips[action.target.strip].kept
            areas += [action.target] * kept
        for area in areas:
            if area.strip is not None:
                strips.setdefault(area.row_value, set()).add(area.strip)
    most_rows = {}
    for value, of_value in strips.items():
        row = program.row_values[value]
        n_bytes = sum(plan.strips[strip].n_bytes for strip in of_value)
        rows = n_bytes // (row.planes * row.row_bytes)
        most_rows[value] = max(rows, row.height) if value in plan.written else rows
    return most_rows
