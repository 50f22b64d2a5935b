"""Regions of a program that was damaged: refused, or every byte that they touch is one of theirs.

Sketches refuse the same ones, and are right of the others.
"""

from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.program import Program
from pipeline.program.region_plan import (
    Area,
    AreaCopy,
    Fill,
    GraphCall,
    Region,
    RegionError,
    RowCut,
)
from pipeline.program.steps import Phase, RegionSteps, row_network
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.program.promises import check_sketches

_MOST_PHASES = 8


def check_regions(program: Program) -> None:
    """Plan regions of ``program``, one at a time: all that is covered, and each operator alone."""
    network = row_network(program)
    runs = {(run.start, run.stop) for run in network.runs}
    alone = {(item.first_piece, item.end_piece) for item in program.row_operators}
    check_sketches(program)
    for first, end in sorted(runs | alone):
        operators = network.within(range(first, end))
        if operators is None:
            continue
        height = network.values[network.operators[operators[-1]].output].height
        region = Region(first, end, RowCut(-(-height // _MOST_PHASES)))
        try:
            plan = make_plan(program, ARCHITECTURES["pre"], choice=Choice(regions=(region,)))
        except RegionError:
            continue
        for step in plan.steps:
            if isinstance(step, Phase):
                _check_phase(program, step)


def _check_phase(program: Program, phase: Phase) -> None:
    for action in phase.region.plan.phases[phase.number]:
        areas: list[Area] = []
        match action:
            case AreaCopy(source, target):
                sizes = [
                    area.planes * area.rows * program.row_values[area.row_value].row_bytes
                    for area in (source, target)
                ]
                assert sizes[0] == sizes[1], action
                areas = [source, target]
            case Fill(target):
                areas = [target]
            case GraphCall(inputs=inputs, output=output):
                areas = [*inputs, output]
        for area in areas:
            _check_area(program, phase.region, area)


def _check_area(program: Program, region: RegionSteps, area: Area) -> None:
    held = program.row_values[area.row_value]
    if area.strip is None:
        room = program.values[held.value].n_bytes
    else:
        room = region.plan.strips[area.strip].n_bytes
    planes = area.first_plane + area.planes
    assert min(area.first_plane, area.first_row, area.first_column) >= 0, area
    assert min(area.planes, area.rows, area.columns) > 0, area
    assert area.first_row + area.rows <= area.held_rows, area
    assert area.first_column + area.columns <= area.held_columns == held.shape[3], area
    assert planes * area.held_rows * held.row_bytes <= room, area
