"""Pictures of plans are SVG that a browser reads, and show all that lives."""

from xml.etree import ElementTree as ET

from models.packs.pack import Pack
from pipeline.fitting.frontier import POINTS, frontier
from pipeline.planning.make import make_plan
from pipeline.program.lives import lifetimes
from pipeline.schedule.architectures import ARCHITECTURES
from server.plots.plans import arena_picture, frontier_picture

_SVG = "{http://www.w3.org/2000/svg}"


def test_the_arena_shows_every_life(tiny_pack: Pack) -> None:
    manifest = tiny_pack.manifest
    plan = make_plan(manifest, ARCHITECTURES["auto"])
    picture = ET.fromstring(arena_picture("<tiny>", manifest, plan))
    lives = [life for life in lifetimes(manifest, plan.steps) if life.n_bytes]
    titled = [item for item in picture.iter(f"{_SVG}rect") if item.find(f"{_SVG}title") is not None]
    assert len(titled) == len(lives)


def test_a_frontier_from_the_smallest_to_all_weights(tiny_pack: Pack) -> None:
    points = frontier(tiny_pack.manifest, ARCHITECTURES["auto"])
    totals = [point.plan.total_bytes for point in points]
    assert totals == sorted(set(totals))
    assert len(points) >= min(POINTS, 3)
    assert all(point.estimated for point in points)  # the pack has no profile
    curve = [(point.plan.total_bytes, 1e3 * point.seconds) for point in points]
    picture = ET.fromstring(frontier_picture("tiny", curve, estimated=True))
    assert len(list(picture.iter(f"{_SVG}circle"))) == len(points)
