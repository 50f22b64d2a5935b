"""What is timed beside kernels: the loop of sweeps that read, and first calls of operators in regions."""

from pathlib import Path

import pytest

from models.packs.pack import Pack, open_pack
from pipeline.devices.cpu import CpuDevice
from pipeline.measuring.overheads import loop_seconds, typical_plan
from pipeline.measuring.row_operators import RowKernels
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.profiles.profile import Profile
from pipeline.profiles.times import first_key
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RowCut
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.made_profiles import always, profile
from tests.pipeline.small import small_pack


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return open_pack(small_pack(Path(tmp_path_factory.mktemp("repository"))))


def known(pack: Pack, **others: float) -> Profile:
    """Return a made profile whose ``others`` take so long."""
    found = profile(Program.as_compiled(pack))
    kernels = found.kernels | {key: always(seconds) for key, seconds in others.items()}
    return found.model_copy(update={"kernels": kernels})


def test_the_loop_takes_time_in_sweeps_that_read_alone(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    reads, pre = (make_plan(program, ARCHITECTURES[name]) for name in ("2s", "pre"))
    without = profile(program)
    with_loop = without.model_copy(update={"loop": always(1.0)})
    assert with_loop.durations(pre) == without.durations(pre)
    more = [
        after - before
        for after, before in zip(
            with_loop.durations(reads).stages[-1], without.durations(reads).stages[-1], strict=True
        )
    ]
    assert more == pytest.approx([1.0] * len(reads.steps))


def test_every_sweep_of_nothing_ends(pack: Pack) -> None:
    """Also with reads for the next sweep, whichever the plan has."""
    for name in ("seq", "2s", "auto"):
        plan = typical_plan(Program.as_compiled(pack), name, CpuDevice(1))
        for recorded in (False, True):
            assert min(loop_seconds(plan, recorded)) > 0


def test_every_operator_has_a_first_call(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    found = dict(RowKernels(program, CpuDevice(1)).first_calls())
    assert list(found) == [first_key(number) for number in range(len(program.row_operators))]
    assert min(found.values()) >= 0


def test_a_region_has_the_first_call_of_each_operator_once(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    network = row_network(program)
    run = network.runs[0]
    operators = network.within(run)
    assert operators is not None
    choice = Choice(regions=(Region(run.start, run.stop, RowCut(2)),))
    plan = make_plan(program, ARCHITECTURES["pre"], choice=choice)
    before = known(pack).durations(plan).stages[-1]
    firsts = {first_key(number): 10.0**number for number in operators}
    after = known(pack, **firsts).durations(plan).stages[-1]
    assert sum(after) - sum(before) == pytest.approx(sum(firsts.values()))
    assert after[-1] == before[-1], "they were called before"
