"""The papers' plans as plans of our engine, so that they can be run beside ours: all weights in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from models.geometry.of_pack import PackCnn
from models.packs.manifest import Manifest
from pipeline.applications.parts import Parts
from pipeline.applications.placements import PLACEMENTS
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.program.lives import lifetimes, placed
from pipeline.program.regions import Region, RegionError
from pipeline.program.row_network import RowNetwork
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import ARCHITECTURES

_PRE = ARCHITECTURES["pre"]


def placed_plan(manifest: Manifest, way: str) -> Plan:
    """Return the whole network's plan, its activations placed as ``way`` of PLACEMENTS does."""
    plan = make_plan(manifest, _PRE)
    offsets, n_bytes = PLACEMENTS[way](lifetimes(manifest, plan.steps))
    places = (offsets[root] + offset for root, offset in placed(manifest, plan.steps))
    values = (*places, *offsets[len(manifest.values) :])
    return replace(plan, values=values, arena_bytes=n_bytes)


def by_one_row(manifest: Manifest) -> Plan:
    """Return the plan in which whatever can be made by one row is (seed 001, the [17] of seed 000)."""
    network = row_network(manifest)
    return _with(manifest, network, [Region(run.start, run.stop, 1) for run in network.runs])


def of_chromosome(manifest: Manifest, model: PackCnn, genes: Sequence[int]) -> Plan:
    """Return the plan whose regions are the runs of ``genes``, with the rows of their last layers."""
    network = row_network(manifest)
    regions = []
    for run in Parts(model.cnn, range(len(genes))).runs(genes):
        numbers = [model.operators[layer] for layer in range(run.start, run.end)]
        operators = sorted(number for number in numbers if number is not None)
        if run.by_parts and len(operators) > 1:
            last = model.layer_of[operators[-1]]
            pieces = [network.operators[number] for number in operators]
            start = min(item.first_piece for item in pieces)
            end = max(item.end_piece for item in pieces)
            regions.append(Region(start, end, genes[last]))
    return _with(manifest, network, regions)


def _with(manifest: Manifest, network: RowNetwork, wanted: Sequence[Region]) -> Plan:
    """Return the plan with as much of each region as can be one; what cannot runs whole."""
    regions: list[Region] = []
    for region in wanted:
        for smaller in _smaller(network, region):
            if regions and smaller.first_piece < regions[-1].end_piece:
                continue
            try:
                make_plan(manifest, _PRE, choice=Choice(regions=(*regions, smaller)))
            except RegionError:
                continue
            regions.append(smaller)
            break
    return make_plan(manifest, _PRE, choice=Choice(regions=tuple(regions)))


def _smaller(network: RowNetwork, region: Region) -> Iterator[Region]:
    """Yield ``region`` and what is left of it without its first and last pieces."""
    places = sorted(network.places & {*range(region.first_piece, region.end_piece + 1)})
    for less in range(len(places) - 1):
        for front in range(less + 1):
            start, end = places[front], places[len(places) - 1 - (less - front)]
            if start < end and network.within(range(start, end)) is not None:
                yield Region(start, end, region.rows)
