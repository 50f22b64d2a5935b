"""Pictures of plans are SVG that a browser reads, and show all that lives."""

from pathlib import Path
from xml.etree import ElementTree as ET

from cli.plots.plans import arena_picture, frontier_picture
from models.packs.pack import Pack, open_pack
from pipeline.fitting.trade_off import POINTS, frontier
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RowCut
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.small import small_pack
from tests.pipeline.writes import arena_weights

_SVG = "{http://www.w3.org/2000/svg}"


def test_the_arena_shows_every_life(tiny_pack: Pack) -> None:
    program = Program.as_compiled(tiny_pack)
    plan = make_plan(program, ARCHITECTURES["auto"])
    picture = ET.fromstring(arena_picture("<tiny>", program, plan))
    lives = [buffer for buffer in plan.buffers if buffer.space == "arena" and buffer.n_bytes]
    titled = [item for item in picture.iter(f"{_SVG}rect") if item.find(f"{_SVG}title") is not None]
    assert len(titled) == len(lives)


def test_the_arena_shows_weights_that_lie_there(tmp_path: Path) -> None:
    program = Program.as_compiled(open_pack(small_pack(tmp_path)))
    for in_arena in (False, True):
        choice = Choice(regions=(Region(0, 2, RowCut(2), in_arena),))
        plan = make_plan(program, ARCHITECTURES["auto"], choice=choice)
        assert bool(arena_weights(plan)) == in_arena
        picture = ET.fromstring(arena_picture("small", program, plan))
        titles = [item.text or "" for item in picture.iter(f"{_SVG}title")]
        assert sum(title.startswith("weights of a region") for title in titles) == in_arena


def test_a_frontier_from_the_smallest_to_all_weights(tiny_pack: Pack) -> None:
    points = frontier(Program.as_compiled(tiny_pack), ARCHITECTURES["auto"])
    totals = [point.plan.total_bytes for point in points]
    assert totals == sorted(set(totals))
    assert len(points) >= min(POINTS, 3)
    assert all(point.estimated for point in points)  # the pack has no profile
    curve = [(point.plan.total_bytes, 1e3 * point.seconds) for point in points]
    picture = ET.fromstring(frontier_picture("tiny", curve, estimated=True))
    assert len(list(picture.iter(f"{_SVG}circle"))) == len(points)
