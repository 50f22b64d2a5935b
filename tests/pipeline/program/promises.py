"""What sketches of a network promise, against its regions: what can be is proposed, and takes just that."""

from contextlib import suppress

from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RegionError, RegionPlan, RowCut
from pipeline.program.regions import plan_region
from pipeline.program.row_network import RowNetwork
from pipeline.program.sketches import MOST_PHASES, Sketch, sketches

_ROWS = (1, 2, 3, 4, 8, 16, 32)
Promised = tuple[int, int, int, frozenset[int]]


class Same:
    """Times that are all alike: only numbers of calls and copies count."""

    def call(self, operator: int, rows: int, columns: int | None = None) -> float:
        return 1.0

    def move(self, n_bytes: int, runs: int = 0) -> float:
        return 0.25

    def bottleneck(self, plan: RegionPlan) -> float:
        return 1.0


def sketched(network: RowNetwork) -> dict[Region, Promised]:
    """Return what sketches propose: bytes of strips and scratch, those it saves, and what lies whole."""
    places = sorted(network.places)
    found: dict[Region, Promised] = {}
    for end in places:
        run = next((run for run in network.runs if run.start < end <= run.stop), None)
        if run is None:
            continue
        starts = {place: 1 << 60 for place in places if run.start <= place < end}
        for sketch in sketches(network, end, starts, _ROWS, Same()):
            found |= dict(_promises(sketch))
    return found


def _promises(sketch: Sketch) -> list[tuple[Region, Promised]]:
    return [
        (
            Region(sketch.first_piece, sketch.end_piece, RowCut(rows)),
            (
                int(sketch.strip_bytes[number]),
                int(sketch.scratch_bytes[number]),
                int(sketch.shared_bytes[number]),
                sketch.touched,
            ),
        )
        for number, rows in enumerate(sketch.rows)
    ]


def planned(network: RowNetwork) -> dict[Region, Promised]:
    """Return all regions that can be, between any two places, of as many rows as are tried."""
    found = {}
    for end in network.places:
        for start in network.places:
            operators = network.within(range(start, end)) if start < end else None
            if operators is None:
                continue
            height = network.values[network.operators[operators[-1]].output].height
            for rows in _ROWS:
                region = Region(start, end, RowCut(rows))
                if rows <= height <= rows * MOST_PHASES:
                    with suppress(RegionError):
                        found[region] = _takes(network, plan_region(network, region))
    return found


def _takes(network: RowNetwork, plan: RegionPlan) -> Promised:
    shared = sum(network.values[old].n_bytes for _, old in plan.over)
    return plan.live_bytes(), plan.scratch_bytes, shared, plan.read | plan.written


def check_sketches(program: Program) -> int:
    """Compare all; return how many regions there are."""
    network = RowNetwork(program)
    proposed, possible = sketched(network), planned(network)
    assert proposed == possible
    return len(possible)
