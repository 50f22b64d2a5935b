"""Profiling a real pack: whatever can be planned is estimated, and sweeps stay within their limits."""

from pathlib import Path

import pytest

from models.compiler import compile_onnx
from models.packs.pack import Pack, open_pack
from models.records import plain, read_json, to_json
from models.whole_files import check_writable
from pipeline.devices.cpu import CpuDevice
from pipeline.fitting.fit import fit
from pipeline.fitting.predicting import Predictions
from pipeline.fitting.wanted import Wanted
from pipeline.measuring.profiling import (
    ProcessorTimes,
    busy_seconds,
    others_share,
    profile_pack,
)
from pipeline.measuring.sweeps import cache_bytes, measure_limits
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile
from pipeline.profiles.profile_file import FILE, disturbance
from pipeline.program.choice import chunk_sizes
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import over
from tests.models.nets import no_weights, written

Profiling = tuple[Profile, list[tuple[int, int]], list[str]]


@pytest.fixture(scope="module")
def profiling(tiny_pack: Pack) -> Profiling:
    """A profile, and the steps and lines that were said meanwhile."""
    steps: list[tuple[int, int]] = []
    said: list[str] = []
    made = profile_pack(tiny_pack, CpuDevice(), 2, lambda *step: steps.append(step), said.append)
    return made, steps, said


@pytest.fixture(scope="module")
def measured(profiling: Profiling) -> Profile:
    return profiling[0]


def test_every_part_has_been_measured(tiny_pack: Pack, measured: Profile) -> None:
    program = Program.as_compiled(tiny_pack)
    assert {item.depth for item in measured.reads} == {1, 2, 4}
    assert measured.copies
    assert len(measured.pieces) == len(program.pieces)
    assert max(measured.pieces) > 0
    assert measured.resident.count >= 5
    assert measured.resident.median > 0
    assert measured.outside.count == measured.resident.count
    assert (measured.plans, measured.limits) == ((), {})
    assert measured.machine == this_machine(tiny_pack.weights_path, CpuDevice())


@over("name", sorted(ARCHITECTURES))
def test_every_architecture_can_be_predicted(tiny_pack: Pack, measured: Profile, name: str) -> None:
    program = Program.as_compiled(tiny_pack)
    architecture = ARCHITECTURES[name]
    half = None if architecture.resident else program.weight_bytes // 2
    for limit in (None, half):
        found = fit(program, architecture, Wanted(weight_bytes=limit), measured)
        prediction = found.prediction
        assert prediction is not None
        assert prediction.bound_seconds is None
        assert not prediction.measured
        assert prediction.delay_seconds > measured.outside.median
        assert not found.reasons
        assert bool(found.curve) == (architecture.tuned == "search")


def test_a_network_without_weights_is_profiled(tmp_path: Path) -> None:
    source = written(no_weights(), tmp_path / "none.onnx")
    pack = open_pack(compile_onnx(source, tmp_path / "packs" / "none"))
    measured = profile_pack(pack, CpuDevice(), iterations=1)
    assert (measured.reads, measured.copies) == ((), ())
    assert read_json(Profile, to_json(plain(measured))) == measured
    for architecture in ARCHITECTURES.values():
        for constraints in (Wanted(), Wanted(total_bytes=1 << 30)):
            expected = fit(
                Program.as_compiled(pack), architecture, constraints, measured
            ).prediction
            assert expected is not None
            assert expected.delay_seconds > 0
            assert expected.stall_seconds == 0


def test_with_all_weights_in_memory_it_is_expected_to_take_what_it_took(
    tiny_pack: Pack, measured: Profile
) -> None:
    """And each size of chunks has its kernels."""
    program = Program.as_compiled(tiny_pack)
    usual = fit(program, ARCHITECTURES["pre"], Wanted(), measured)
    assert usual.predicted_seconds == pytest.approx(measured.resident.median)
    predictions = Predictions(program, measured)
    for level in (0, *chunk_sizes(program)):
        plan = make_plan(program, ARCHITECTURES["pre"], choice=Choice(chunk_bytes=level))
        kernels = sum(predictions.estimates.kernels(plan))
        assert kernels == pytest.approx(predictions.estimates.seconds(plan))
        assert kernels >= sum(measured.pieces)


@pytest.mark.parametrize("name", ["pre", "seq", "async", "2s", "auto"])
def test_limits_bound_the_plan_that_they_are_of(
    tiny_pack: Pack, measured: Profile, name: str
) -> None:
    program = Program.as_compiled(tiny_pack)
    half = program.weight_bytes // 2
    constraints = Wanted(weight_bytes=None if name == "pre" else half)
    plan = fit(program, ARCHITECTURES[name], constraints, measured).plan
    steps: list[tuple[int, int]] = []
    limits = measure_limits(
        program,
        plan,
        CpuDevice(),
        5,
        lambda done, total: steps.append((done, total)),
    )
    assert steps == [(number, 5) for number in range(1, 6)]
    known = measured.with_limits(plan, limits)
    assert known.bound_seconds(plan) == limits.bound_seconds(plan) > 0
    assert read_json(Profile, to_json(plain(known))) == known


def test_progress_ends_where_it_said(profiling: Profiling) -> None:
    _, steps, said = profiling
    assert [done for done, _ in steps] == list(range(len(steps)))
    assert steps[-1][0] == steps[-1][1]
    for what in ("how the device works best", "reads and copies", "kernels"):
        assert any(what in line for line in said)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [(["32K", "1024K", "4096K"], 4 << 20), (["512000K"], 64 << 20), ([], 8 << 20), ([""], 8 << 20)],
)
def test_the_largest_cache_is_found(tmp_path: Path, sizes: list[str], expected: int) -> None:
    for number, size in enumerate(sizes):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(size + "\n")
    assert cache_bytes(tmp_path) == expected


def test_where_a_file_can_be_made_none_is_left(tmp_path: Path) -> None:
    check_writable(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="No such file"):
        check_writable(tmp_path / "none")


# Other work on the machine while a profile is measured is counted, and said.

STAT = "cpu  100 20 30 5000 700 1 2 3 40 5\ncpu0 1 2 3 4 5 6 7 8 9 10\nintr 1\n"


def test_what_processors_do_is_read() -> None:
    """All but idle and waiting for disks; guests are in user already."""
    assert busy_seconds(STAT, 100) == pytest.approx(1.56)
    for text in ("", "cpu 1 2 3", "intr 1 2 3 4 5 6 7 8 9", "cpu a b c d e f g h"):
        with pytest.raises(ValueError, match=r"processors|literal|unpack"):
            busy_seconds(text, 100)


@over(
    "after, share",
    [
        (ProcessorTimes(10.0, 15.0, 15.0), 0.0),  # all of it ours
        (ProcessorTimes(10.0, 15.0, 10.0), 0.25),
        (ProcessorTimes(10.0, 20.0, 0.0), 1.0),
        (ProcessorTimes(10.0, 9.9, 10.0), 0.0),  # ticks are coarse
        (ProcessorTimes(0.0, 0.0, 0.0), 0.0),
        (None, 0.0),
    ],
)
def test_the_part_that_others_took(after: ProcessorTimes | None, share: float) -> None:
    assert others_share(ProcessorTimes(0.0, 0.0, 0.0), after, 2) == share


def test_a_pack_tells_how_its_profile_was_measured(tmp_path: Path) -> None:
    said = []
    for text in ('{"others": 0.34, "reads": []}', '{"others": 0.1}', '{"date": ""}', "not JSON"):
        (tmp_path / FILE).write_text(text)
        said.append(disturbance(tmp_path))
    assert "34%" in said[0]
    assert said[1:] == ["", "", ""]
    assert disturbance(tmp_path / "none") == ""
