"""Profiles: what they say of plans, how they are kept, and which are refused."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.packs.pack import Pack, open_pack
from pipeline.fitting.fit import fit
from pipeline.fitting.judge import predict
from pipeline.fitting.row_variants import row_variants
from pipeline.fitting.wanted import LEAST
from pipeline.measuring.profiling import chunk_levels
from pipeline.planning.joined_launches import joined
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.profiles.delay_limits import SweepLimits
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import FILE, load_profile, manifest_checksum, save_profile
from pipeline.profiles.times import Distribution, Overlap, piece_key, plan_key, row_keys
from pipeline.program.choice import choose_pieces
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.region_plan import RowCut
from pipeline.program.steps import row_network
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.timing.durations import Durations, services
from tests.pipeline.made_profiles import MACHINE, always, profile
from tests.pipeline.plans import plans, swept
from tests.pipeline.program.regions import largest_regions
from tests.pipeline.program.row_programs import random_network
from tests.pipeline.synthetic import program, programs

MEBIBYTE = 1 << 20


@pytest.fixture
def kept(pack_folder: Path) -> tuple[Pack, Profile]:
    """A pack of its own for the test, and a profile of it."""
    pack = open_pack(pack_folder)
    return pack, profile(Program.as_compiled(pack)).model_copy(
        update={"manifest": manifest_checksum(pack)}
    )


def test_a_distribution_says_what_the_samples_were() -> None:
    made = Distribution.of([0.3, 0.1, 0.2])
    assert (made.count, made.median, made.max) == (3, 0.2, 0.3)
    assert made.median <= made.p95 <= made.max


@given(plans())
def test_durations_fit_their_plan(drawn: tuple[Any, Plan]) -> None:
    source, plan = drawn
    made = profile(source).durations(plan)
    assert [len(row) for row in made.stages] == [len(stage) for stage in plan.stages]
    assert made.depth == plan.choice.depth
    count = len(plan.groups)
    # A read for the next sweep takes as long as the same one of this sweep.
    assert all(
        made.stages[0][index] == made.stages[0][index % count]
        for index in range(len(plan.stages[0]))
    )
    assert swept(plan.stages, made).delay_seconds >= sum(made.stages[-1])


@given(plans(), st.floats(0, 1e-3), st.floats(1, 1.2))
def test_steps_in_one_launch_take_what_launches_save_less(
    drawn: tuple[Any, Plan], launch: float, whole: float
) -> None:
    source, plan = drawn
    alone = profile(source)
    known = alone.model_copy(update={"launch": launch, "whole": whole})
    longer = joined(source, plan)
    before, after = (made.durations(longer) for made in (alone, known))
    assert before.stages[:-1] == after.stages[:-1]
    for run in longer.runs:
        took = whole * sum(alone.durations(plan).stages[-1][run.start : run.stop])
        held = after.stages[-1][run.start : run.stop]
        assert held[0] == pytest.approx(max(took - launch * (len(run) - 1), 0.0))
        assert not any(held[1:])
    fewer = sum(len(run) - 1 for run in longer.runs)
    total = whole * sum(before.stages[-1])
    assert total - fewer * launch - 1e-9 <= sum(after.stages[-1]) <= total + 1e-9
    # A bound counts on nothing that only usually saves time, and leaves out nothing that usually takes it.
    slowest = known.durations(longer, "max")
    maxima = sum(alone.durations(plan, "max").stages[-1])
    assert sum(slowest.stages[-1]) == pytest.approx(whole * maxima)
    bound, of_each = known.bound_seconds(longer), alone.bound_seconds(plan)
    assert bound is not None
    assert of_each is not None
    assert bound >= max(of_each, swept(longer.stages, after).delay_seconds) * (1 - 1e-9)


def test_reads_between_sizes_and_depths_are_interpolated() -> None:
    made = profile(program([1], [True]))
    for depth in (1, 2, 3, 4, 8):
        for n_bytes in (64 << 10, 100 << 10, MEBIBYTE, 8 * MEBIBYTE, 20 * MEBIBYTE):
            assert made.read_seconds(n_bytes, depth) == pytest.approx(depth * n_bytes / 1e9)
    assert made.copy_seconds(3 * MEBIBYTE) == pytest.approx(3 * MEBIBYTE / 1e9)


def test_a_read_below_the_table_takes_what_the_smallest_takes() -> None:
    made = profile(program([1], [True]))
    assert made.read_seconds(4096) == made.read_seconds(64 << 10)


def test_operations_take_longer_where_they_meet() -> None:
    source = program([4, 4], [True, True])
    overlaps = {
        "2s": Overlap(read=1.5, disturbance=1e-4),
        "auto": Overlap(read=2.0, slowdown=0.25),
        "async": Overlap(copying=3.0),
    }
    made = profile(source, slowdown=0.5).model_copy(update={"overlaps": overlaps})
    alone = made.read_seconds(4 * 4096)  # the ring holds one

    def durations(name: str, ring_bytes: int | None = None) -> Durations:
        return made.durations(make_plan(source, ARCHITECTURES[name], ring_bytes))

    turns, roomy = durations("2s"), durations("2s", 8 * 4096)
    assert turns.stages[0] == pytest.approx([1.5 * alone] * 2)
    assert (turns.slowdown, turns.disturbance) == (0.0, 1e-4)
    assert roomy.slowdown == 0.25
    assert durations("2s-md") == durations("auto")
    assert roomy.stages[0][0] == pytest.approx(2 * made.read_seconds(8 * 4096, 2))
    assert durations("async-md").stages[1] == pytest.approx([3 * made.copy_seconds(4 * 4096)] * 2)
    # What was not measured is as beside a thread that reads.
    assert durations("seq").slowdown == 0.5
    assert durations("seq").stages[0] == pytest.approx([alone] * 2)


def test_a_kernel_without_a_time_is_named() -> None:
    source = program([4], [True])
    plan = make_plan(source, ARCHITECTURES["2s"])
    made = profile(source).model_copy(update={"kernels": {}})
    with pytest.raises(ProfileError, match=r"no time of kernel 0:0\*1:.*layerstream profile"):
        made.durations(plan)


@given(programs())
def test_levels_run_every_kernel_that_can_be_chosen(source: Any) -> None:
    _check_levels(source)


def test_levels_of_a_real_pack_run_every_kernel(tiny_pack: Pack) -> None:
    program = Program.as_compiled(tiny_pack)
    _check_levels(program)
    for level in chunk_levels(program):
        pieces = choose_pieces(program, level)
        assert len({piece_key(piece) for piece in pieces}) == len(pieces)


def _check_levels(source: Any) -> None:
    every = set(profile(source).kernels) - set(row_keys(row_network(source)))
    pre = ARCHITECTURES["pre"]
    seen = {
        piece_key(step)
        for level in chunk_levels(source)
        for step in make_plan(source, pre, choice=Choice(chunk_bytes=level)).steps
        if isinstance(step, PreparedPiece)
    }
    assert seen == every


def test_plans_that_differ_have_different_keys(tiny_pack: Pack) -> None:
    source = Program.as_compiled(tiny_pack)
    whole = source.largest_chunk_bytes
    made = [
        make_plan(source, ARCHITECTURES["2s"], choice=choice)
        for choice in (
            Choice(2 * whole),
            Choice(3 * whole),
            Choice(3 * whole, depth=1),
            Choice(3 * whole, ahead="tail"),
            Choice(2 * source.weight_bytes, chunk_bytes=0),
            Choice(2 * source.weight_bytes, chunk_bytes=source.weight_bytes),
        )
    ]
    assert len({plan_key(plan) for plan in made}) == len(made)
    assert plan_key(replace(made[0], runs=(range(2),))) != plan_key(made[0])
    again = make_plan(source, ARCHITECTURES["2s"], choice=Choice(2 * whole))
    assert plan_key(again) == plan_key(made[0])


def test_a_profile_is_kept_beside_its_pack(kept: tuple[Pack, Profile]) -> None:
    pack, made = kept
    path = save_profile(made, pack)
    assert path == pack.folder / FILE
    assert load_profile(pack, MACHINE) == made
    assert not [file for file in pack.folder.iterdir() if file.name.startswith(".")]
    assert open_pack(pack.folder).manifest == pack.manifest


def test_a_profile_without_times_of_rows_plans_without_rows(
    kept: tuple[Pack, Profile], caplog: pytest.LogCaptureFixture
) -> None:
    pack, made = kept
    auto = ARCHITECTURES["auto"]
    assert made.has_row_times(row_network(Program.as_compiled(pack)))
    pieces = {key: time for key, time in made.kernels.items() if not key.startswith("rows")}
    save_profile(made.model_copy(update={"kernels": pieces, "date": "2025"}), pack)
    old = load_profile(pack, MACHINE)
    assert "no times of operators on rows" in caplog.text
    assert "layerstream profile" in caplog.text
    assert [
        variant.regions for variant in row_variants(Program.as_compiled(pack), auto, old).found
    ] == [()]
    assert not fit(Program.as_compiled(pack), auto, LEAST, old).plan.choice.regions


def test_limits_are_kept_with_the_plan_they_are_of(kept: tuple[Pack, Profile]) -> None:
    pack, made = kept
    plan = make_plan(Program.as_compiled(pack), ARCHITECTURES["2s"])
    other = make_plan(Program.as_compiled(pack), ARCHITECTURES["2s"], choice=Choice(depth=1))
    sweep = swept(plan.stages, made.durations(plan))
    served = services(plan.stages, sweep.events, plan.choice.depth)
    limits = SweepLimits.of(plan, [(served, sweep.delay_seconds)])
    save_profile(made.with_limits(plan, limits), pack)
    read = load_profile(pack, MACHINE)
    assert read.bound_seconds(plan) == limits.bound_seconds(plan)
    assert plan_key(other) not in read.limits


def test_without_a_profile_the_remedy_is_named(tiny_pack: Pack) -> None:
    with pytest.raises(ProfileError, match="no profile: run `layerstream profile "):
        load_profile(tiny_pack, MACHINE)


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("cpu", "another processor"),
        ("threads", 4),
        ("device", "/dev/slow"),
        ("onnxruntime", "0.9"),
        ("huge_pages", False),
    ],
)
def test_another_machine_is_named(kept: tuple[Pack, Profile], field: str, other: object) -> None:
    pack, made = kept
    save_profile(made, pack)
    value, here = getattr(MACHINE, field), MACHINE.model_copy(update={field: other})
    words = field.replace("_", " ")
    expected = f"measured on {words} {value}, this machine has {other}; run `layerstream profile"
    with pytest.raises(ProfileError, match=expected):
        load_profile(pack, here)


@pytest.mark.parametrize(
    ("field", "other"), [("kernel", "Linux 6.1.0-18"), ("reader_priority", "slice")]
)
def test_what_differs_slightly_is_planned_with_and_has_no_bound(
    kept: tuple[Pack, Profile], caplog: pytest.LogCaptureFixture, field: str, other: str
) -> None:
    pack, made = kept
    plan = make_plan(Program.as_compiled(pack), ARCHITECTURES["2s"])
    served = services(
        plan.stages, swept(plan.stages, made.durations(plan)).events, plan.choice.depth
    )
    save_profile(made.with_limits(plan, SweepLimits.of(plan, [(served, 1.0)])), pack)
    read = load_profile(pack, MACHINE.model_copy(update={field: other}))
    assert read.durations(plan) == made.durations(plan)
    (warning,) = (record.getMessage() for record in caplog.records)
    words = field.replace("_", " ")
    assert f"{words} {getattr(MACHINE, field)}, this machine has {other}" in warning
    assert "no bound holds" in warning
    assert read.bound_seconds(plan) is None
    assert read.limits_of(plan) is None
    assert predict(plan, read).bound_seconds is None
    # What is of this machine says nothing, and holds.
    caplog.clear()
    assert load_profile(pack, MACHINE).limits_of(plan) is not None
    assert not caplog.records


def test_every_difference_is_decisive_or_slight() -> None:
    values = {
        "cores": 3,
        "threads": 3,
        "huge_pages": False,
        "reader_priority": "slice",
        "pace": 3e9,
    }
    for field in type(MACHINE).model_fields:
        other = MACHINE.model_copy(update={field: values.get(field, "other")})
        both = MACHINE.decisive_differences(other, True), MACHINE.slight_differences(other)
        assert sorted(map(len, both)) == [0, 1], field
        plain = MACHINE.decisive_differences(other, False)
        assert plain == ([] if field == "quantised_kernels" else both[0]), field


def test_a_profile_of_another_pack_is_refused(kept: tuple[Pack, Profile]) -> None:
    pack, made = kept
    save_profile(made.model_copy(update={"manifest": "f" * 16}), pack)
    with pytest.raises(ProfileError, match="profile of another pack"):
        load_profile(pack, MACHINE)


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        (("reads",), [], "reads"),
        (("slowdown",), -1, "slowdown"),
        (("slowdown",), "NaN", "slowdown"),
        (("outside", "median"), -1e-3, "outside.median"),
        (("reads", 0, "n_bytes"), 0, "reads.0.n_bytes"),
        (("format_version",), 1, "format_version"),
        (("surprise",), 1, "surprise"),
    ],
)
def test_a_damaged_profile_is_refused(
    kept: tuple[Pack, Profile], path: tuple[Any, ...], value: object, word: str
) -> None:
    pack, made = kept
    document = json.loads(made.model_dump_json())
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (pack.folder / FILE).write_text(json.dumps(document))
    with pytest.raises(ProfileError, match=word):
        load_profile(pack, MACHINE)


@given(st.binary(max_size=40))
def test_no_bytes_of_a_profile_do_worse_than_an_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    folder = tmp_path_factory.mktemp("pack")
    (folder / FILE).write_bytes(content)
    (folder / "manifest.json").write_bytes(b"{}")
    with pytest.raises(ProfileError, match=FILE):
        load_profile(Pack(folder, program([1], [True]).pack.manifest, ()), MACHINE)


def test_quantiles_are_those_of_the_samples() -> None:
    source = program([4], [True])
    plan = make_plan(source, ARCHITECTURES["2s"])
    spread = Distribution(count=3, median=1.0, p95=2.0, max=3.0)
    made = profile(source)
    made = made.model_copy(update={"kernels": dict.fromkeys(made.kernels, spread)})
    found = [made.durations(plan, quantile).stages[-1] for quantile in ("median", "p95", "max")]
    assert found == [(1.0,), (2.0,), (3.0,)]
    assert always(2.0).at("p95") == 2.0


def test_phases_are_those_of_their_network_and_few_are_remembered() -> None:
    """A region is named by its pieces: that of another network is another one."""
    networks = [random_network(Random(seed), 8) for seed in range(24)]
    parts = [profile(network) for network in networks]
    times = {key: time for part in parts for key, time in part.kernels.items()}
    # One profile is asked for all, each of the others for one.
    shared = parts[0].model_copy(update={"kernels": times})
    asked = 0
    for network in networks:
        alone = profile(network).model_copy(update={"kernels": times})
        for region in largest_regions(row_network(network), RowCut(1)):
            choice = Choice(regions=(region,))
            plan = make_plan(network, ARCHITECTURES["pre"], choice=choice)
            assert shared.durations(plan) == alone.durations(plan)
            asked += 1
    assert asked > 16
    for seed in range(24):
        network = random_network(Random(seed), 8)  # again, and so another one
        for rows in range(1, 9):
            for region in largest_regions(row_network(network), RowCut(rows)):
                choice = Choice(regions=(region,))
                shared.durations(make_plan(network, ARCHITECTURES["pre"], choice=choice))
                asked += 1
    assert asked > 256 >= len(shared._phase_cache)


def test_only_a_network_without_weights_has_no_reads(kept: tuple[Pack, Profile]) -> None:
    _, made = kept
    document = json.loads(made.model_dump_json())
    nothing = {**document, "reads": [], "copies": []}
    assert Profile.model_validate(nothing).reads == ()
    with pytest.raises(ValueError, match="none were measured of one"):
        Profile.model_validate({**document, "reads": []})
