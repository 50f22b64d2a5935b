"""Plans of partitions that run at once: put together of each one's, no smaller one as fast."""

from itertools import product
from pathlib import Path

import pytest

from benchmarks.planning.rivals import by_one_row, of_parts
from models.packs.pack import Pack, open_pack
from papers.applications.application import Application, one_by_one
from papers.applications.from_pack import cnn_with_parameters, cuts_of, first_layer, layers_at
from papers.applications.ours.frontiers import preloaded, streamed
from papers.applications.ours.members import ApplicationMember, PlannedMember, at_once, turns
from pipeline.planning.plan import PartitionedPlan
from pipeline.program.partitions import Cuts
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.made_profiles import profile
from tests.pipeline.small import small_pack

AUTO = ARCHITECTURES["auto"]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return open_pack(small_pack(Path(tmp_path_factory.mktemp("repository"))))


def member(pack: Pack, measured: bool) -> ApplicationMember:
    program = Program.as_compiled(pack)
    places = Cuts(program).places
    known = profile(program) if measured else None
    return ApplicationMember(program, known, AUTO, (places[len(places) // 2],))


@pytest.mark.parametrize("measured", [False, True])
def test_no_choice_of_plans_is_smaller_and_as_fast(pack: Pack, measured: bool) -> None:
    """Of all choices of one plan a partition; edges are counted twice."""
    model = member(pack, measured)
    curves = [preloaded(part) for part in model.parts]
    (edge,) = (Cuts(Program.as_compiled(pack)).edge_bytes(cut) for cut in model.cuts)
    found = at_once(model, curves)
    for point in found:
        assert isinstance(point.plan, PartitionedPlan)
        parts = sum(part.arena_bytes for part in point.plan.partitions)
        assert point.plan.arena_bytes == parts + 2 * edge
    for chosen in product(*curves):
        n_bytes = sum(item.memory_bytes for item in chosen) + 2 * edge
        slowest = max(item.seconds for item in chosen)
        assert any(p.memory_bytes <= n_bytes and p.seconds <= slowest for p in found)


def test_what_all_partitions_read_takes_its_time(pack: Pack) -> None:
    """The disk is one: a frame takes at least what it reads for all of them."""
    model = member(pack, measured=True)
    least = [[min(streamed(part, 2), key=_memory)] for part in model.parts]
    slow = profile(Program.as_compiled(pack), bytes_a_second=1e6)
    (point,) = at_once(ApplicationMember(model.program, slow, AUTO, model.cuts), least)
    assert point.plan.read_bytes > 0
    assert point.seconds >= point.plan.read_bytes / 1e6 > max(item.seconds for (item,) in least)


def _memory(item: PlannedMember) -> int:
    return item.memory_bytes


def test_cuts_are_where_the_file_says_or_at_the_nearest_place(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    model = cnn_with_parameters(program.pack, "m")
    places, count = Cuts(program).places, len(model.cnn.layers)
    assert layers_at(model, places) == tuple(first_layer(model, place) for place in places)
    for first in range(1, count):
        parts = (one_by_one(0, range(first)), one_by_one(0, range(first, count)))
        application = Application("a", (model.cnn,), parts, (frozenset({0, 1}),))
        (cut,) = cuts_of(application, 0, program, model)
        wanted = model.first_pieces[first]
        assert abs(cut.piece - wanted) == min(abs(place - wanted) for place in places)
        assert cut.asked == model.cnn.layers[first].name
        assert cut.moved == (first not in layers_at(model, places))
        assert turns(application) == ((0,),)
        alone = Application("a", (model.cnn,), parts)
        assert cuts_of(alone, 0, program, model) == ()


def test_rivals_have_partitions_too(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    model = member(pack, measured=False)
    plan = of_parts(program, model.cuts, by_one_row)
    assert isinstance(plan, PartitionedPlan)
    assert plan.cuts == model.cuts
    assert not isinstance(of_parts(program, (), by_one_row), PartitionedPlan)
