"""Plans with lanes: never more than there is room for, as many as that allows, one where it is tight."""

from pathlib import Path

import pytest

from models.packs.pack import Pack, open_pack
from pipeline.fitting.fit import fit, fit_lanes
from pipeline.fitting.wanted import LEAST, Wanted
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.small import small_pack

AUTO = ARCHITECTURES["auto"]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return open_pack(small_pack(Path(tmp_path_factory.mktemp("repository"))))


def test_as_many_lanes_as_there_is_room_for(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    least = fit(program, AUTO, LEAST).plan
    found = []
    for room in (least.total_bytes, 2 * least.total_bytes, 4 * least.total_bytes, 1 << 40):
        plan = fit_lanes(program, AUTO, Wanted(total_bytes=room), None, 4).plan
        assert plan.total_bytes <= room
        assert plan.choice.lanes * plan.lane_bytes == plan.arena_bytes
        found.append(plan.choice.lanes)
    assert found == sorted(found)
    assert (found[0], found[-1]) == (1, 4)


def test_one_lane_is_what_fit_says(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    wanted = Wanted(total_bytes=1 << 30)
    assert fit_lanes(program, AUTO, wanted, None, 1) == fit(program, AUTO, wanted)


def test_it_says_how_many_and_what_one_takes(pack: Pack) -> None:
    fitted = fit_lanes(Program.as_compiled(pack), AUTO, Wanted(total_bytes=1 << 30), None, 4)
    assert any("4 lanes of 4" in reason for reason in fitted.reasons)
