"""What planning takes while it lasts, and what is left of it."""

import gc
import weakref
from pathlib import Path

import pytest

from models.packs.pack import Pack
from pipeline.fitting.fit import fit
from pipeline.fitting.row_variants import row_variants
from pipeline.fitting.wanted import LEAST, Wanted
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.planning.rows import ways
from pipeline.program.program import Program
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.small import maps_program

AUTO = ARCHITECTURES["auto"]


def test_nothing_of_a_model_is_left_when_its_plan_goes(tmp_path: Path) -> None:
    program = maps_program(tmp_path)
    least = fit(program, AUTO, LEAST).plan.total_bytes
    plan = fit(program, AUTO, Wanted(total_bytes=least)).plan
    assert plan.choice.regions
    network = weakref.ref(row_network(program))
    program.let_go()
    gc.collect()
    assert network() is None
    left = weakref.ref(program)
    del program, plan
    gc.collect()
    assert left() is None


@pytest.mark.parametrize("at_once", [1, 10_000])
def test_limits_may_be_tried_in_any_number_at_once(
    tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = maps_program(tmp_path)
    usual = row_variants(program, AUTO, None)
    program.let_go()
    monkeypatch.setattr(ways, "_LIMITS_AT_ONCE", at_once)
    assert row_variants(program, AUTO, None) == usual


def test_objects_are_counted(tiny_pack: Pack) -> None:
    """More steps and more lanes take more; the program is there once."""
    program = Program.as_compiled(tiny_pack)
    fine, coarse = (
        make_plan(program, AUTO, choice=Choice(chunk_bytes=size)) for size in (1, 1 << 30)
    )
    assert len(fine.steps) > len(coarse.steps)
    assert fine.object_bytes > coarse.object_bytes > 0
    lanes = make_plan(program, AUTO, choice=Choice(chunk_bytes=1, lanes=3))
    assert fine.object_bytes < lanes.object_bytes < 3 * fine.object_bytes
    assert lanes.memory["objects"] == lanes.object_bytes
