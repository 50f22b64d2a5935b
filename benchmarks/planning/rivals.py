"""The papers' plans as plans of our engine, so that they can be run beside ours: all weights in memory."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from papers.applications.ours.members import joined
from papers.applications.parts import PartitionParts
from papers.applications.placements import PLACEMENTS
from papers.cnn.of_pack import PackCnn
from pipeline.planning.make import make_plan
from pipeline.planning.plan import AnyPlan, Choice, Plan
from pipeline.program.lives import lifetimes
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RegionError, RowCut
from pipeline.program.row_network import RowNetwork
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import ARCHITECTURES

_PRE = ARCHITECTURES["pre"]


def whole(program: Program) -> Plan:
    """Return the plan of whole tensors, placed as our planner does."""
    return make_plan(program, _PRE)


def placed_plan(program: Program, way: str) -> Plan:
    """Return the whole network's plan, its activations placed as ``way`` of PLACEMENTS does."""
    plan = whole(program)
    offsets, n_bytes = PLACEMENTS[way](lifetimes(program, plan.steps))
    buffers = (
        buffer._replace(offset=offsets[buffer.id]) if buffer.space == "arena" else buffer
        for buffer in plan.buffers
    )
    return replace(plan, buffers=tuple(buffers), arena_bytes=n_bytes)


def by_one_row(program: Program) -> Plan:
    """Return the plan in which whatever can be made by one row is (seed 001, the [17] of seed 000)."""
    network = row_network(program)
    return _with(program, [Region(run.start, run.stop, RowCut(1)) for run in network.runs])


def of_parts(program: Program, cuts: Sequence[int], plan_of: Callable[[Program], Plan]) -> AnyPlan:
    """Return the plan of partitions that begin at ``cuts`` and run at once, each as ``plan_of`` has it."""
    return joined(program, cuts, [plan_of(part) for part in Cuts(program).parts(cuts)])


def of_chromosome(
    program: Program,
    model: PackCnn,
    genes: Sequence[int],
    partitions: Sequence[Sequence[int]],
    cuts: Sequence[int] = (),
) -> AnyPlan:
    """Return the plan whose regions are the runs of ``genes`` in each of ``partitions``, by layers.

    ``cuts``: where partitions begin that run at once; a run that goes beyond one ends there.
    """
    regions = [run for layers in partitions for run in _runs(program, model, genes, layers)]
    plans = [_with(part, _within(regions, part.own)) for part in Cuts(program).parts(cuts)]
    return joined(program, cuts, plans)


def _runs(
    program: Program, model: PackCnn, genes: Sequence[int], layers: Sequence[int]
) -> list[Region]:
    """Return the runs of a partition of ``layers``, with the rows of their last ones."""
    regions = []
    for run in PartitionParts(model.cnn, layers).runs([genes[layer] for layer in layers]):
        numbers = [model.operators[layer] for layer in layers[run.start : run.end]]
        operators = sorted(number for number in numbers if number is not None)
        if run.by_parts and len(operators) > 1:
            last = model.layer_of[operators[-1]]
            pieces = [program.row_operators[number] for number in operators]
            start = min(item.first_piece for item in pieces)
            end = max(item.end_piece for item in pieces)
            regions.append(Region(start, end, RowCut(genes[last])))
    return regions


def _with(program: Program, wanted: Sequence[Region]) -> Plan:
    """Return the plan with as much of each region as can be one; what cannot runs whole."""
    network = row_network(program)
    regions: list[Region] = []
    for region in wanted:
        for smaller in _smaller(network, region):
            if regions and smaller.first_piece < regions[-1].end_piece:
                continue
            try:
                make_plan(program, _PRE, choice=Choice(regions=(*regions, smaller)))
            except RegionError:
                continue
            regions.append(smaller)
            break
    return make_plan(program, _PRE, choice=Choice(regions=tuple(regions)))


def _within(regions: Sequence[Region], pieces: range) -> list[Region]:
    """Return what of ``regions`` lies in ``pieces``."""
    clipped = (
        replace(
            region,
            first_piece=max(region.first_piece, pieces.start),
            end_piece=min(region.end_piece, pieces.stop),
        )
        for region in regions
    )
    return [region for region in clipped if region.first_piece < region.end_piece]


def _smaller(network: RowNetwork, region: Region) -> Iterator[Region]:
    """Yield ``region`` and what is left of it without its first and last pieces."""
    places = sorted(network.places & {*range(region.first_piece, region.end_piece + 1)})
    for less in range(len(places) - 1):
        for front in range(less + 1):
            start, end = places[front], places[len(places) - 1 - (less - front)]
            if start < end and network.within(range(start, end)) is not None:
                yield Region(start, end, region.cut)
