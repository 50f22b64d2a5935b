"""Profiles: what they say of plans, how they are kept, and which are refused."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.packs.pack import Pack, open_pack
from models.records import plain, read_record, to_json
from pipeline.fitting.predicting import Predictions
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import FILE, load_profile, manifest_checksum, save_profile
from pipeline.profiles.times import Distribution, plan_key
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.made_profiles import MACHINE, limits, measured, profile
from tests.pipeline.synthetic import program

MEBIBYTE = 1 << 20


@pytest.fixture
def kept(pack_folder: Path) -> tuple[Pack, Profile]:
    """A pack of its own for the test, and a profile of it."""
    pack = open_pack(pack_folder)
    return pack, replace(profile(Program.as_compiled(pack)), manifest=manifest_checksum(pack))


def test_a_distribution_says_what_the_samples_were() -> None:
    made = Distribution.of([0.3, 0.1, 0.2])
    assert (made.count, made.median, made.max) == (3, 0.2, 0.3)
    assert made.median <= made.p95 <= made.max


def test_reads_between_sizes_and_depths_are_interpolated() -> None:
    times = profile(program([1], [True])).times
    for depth in (1, 2, 3, 4, 8):
        for n_bytes in (64 << 10, 100 << 10, MEBIBYTE, 8 * MEBIBYTE, 20 * MEBIBYTE):
            assert times.read(n_bytes, depth) == pytest.approx(depth * n_bytes / 1e9)
    assert times.copy(3 * MEBIBYTE) == pytest.approx(3 * MEBIBYTE / 1e9)


def test_a_read_below_the_table_takes_what_the_smallest_takes() -> None:
    times = profile(program([1], [True])).times
    assert times.read(4096, 1) == times.read(64 << 10, 1)


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


def test_measured_plans_are_saved_with_their_choices(
    kept: tuple[Pack, Profile],
) -> None:
    pack, made = kept
    source = Program.as_compiled(pack)
    some = [
        make_plan(source, ARCHITECTURES["auto"], choice=Choice(depth=depth)) for depth in (1, 2, 3)
    ]
    save_profile(made.with_plans(tuple(measured(plan, 1.5) for plan in some[:2])), pack)
    read = load_profile(pack, MACHINE)
    for plan in some[:2]:
        found = read.measured(plan)
        assert found is not None
        assert (found.ratio, found.rounds, found.total_bytes) == (1.5, 3, plan.total_bytes)
        again = make_plan(source, ARCHITECTURES["auto"], choice=found.choice)
        assert plan_key(again) == found.key
    assert read.measured(some[2]) is None


def test_what_is_measured_again_replaces_what_was(kept: tuple[Pack, Profile]) -> None:
    pack, made = kept
    source = Program.as_compiled(pack)
    one, other = (make_plan(source, ARCHITECTURES[name]) for name in ("2s", "auto"))
    first = made.with_plans((measured(one, 2.0), measured(other, 3.0)))
    again = first.with_plans((measured(one, 1.0),))
    assert again.measured(one) == measured(one, 1.0)
    assert again.measured(other) == measured(other, 3.0)
    assert len(again.plans) == 2


def test_what_plans_are_searched_on_is_all_but_what_judges_them(kept: tuple[Pack, Profile]) -> None:
    """Also where it was asked for before the copy was made."""
    pack, made = kept
    plan = make_plan(Program.as_compiled(pack), ARCHITECTURES["2s"])
    before = made.searched_on
    slow = tuple(2 * seconds for seconds in made.pieces)
    for changed in (
        made.with_plans((measured(plan, 2.0),)),
        replace(made, pieces=slow),
    ):
        assert changed.searched_on != before
        assert changed != made
    assert replace(made, pieces=slow).times.pieces == slow
    limited = made.with_limits(plan, limits(Program.as_compiled(pack), plan, made))
    disturbed = replace(made, others=0.5)
    assert limited.searched_on == disturbed.searched_on == before


def test_limits_are_kept_with_the_plan_they_are_of(kept: tuple[Pack, Profile]) -> None:
    pack, made = kept
    source = Program.as_compiled(pack)
    plan = make_plan(source, ARCHITECTURES["2s"])
    other = make_plan(source, ARCHITECTURES["2s"], choice=Choice(depth=1))
    of_plan = limits(source, plan, made)
    save_profile(made.with_limits(plan, of_plan), pack)
    read = load_profile(pack, MACHINE)
    assert read.bound_seconds(plan) == of_plan.bound_seconds(plan)
    assert read.bound_seconds(other) is None
    again = make_plan(source, ARCHITECTURES["2s"], choice=read.limits[plan_key(plan)].choice)
    assert plan_key(again) == plan_key(plan)


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
def test_another_machine_is_named(kept: tuple[Pack, Profile], field: str, other: Any) -> None:
    pack, made = kept
    save_profile(made, pack)
    value, here = getattr(MACHINE, field), replace(MACHINE, **{field: other})
    words = field.replace("_", " ")
    expected = f"measured on {words} {value}, this machine has {other}; run `layerstream profile"
    with pytest.raises(ProfileError, match=expected):
        load_profile(pack, here)


@pytest.mark.parametrize(
    ("field", "other"), [("kernel", "Linux 6.1.0-18"), ("reader_priority", "slice")]
)
def test_what_differs_slightly_is_planned_with_and_has_no_bound(
    kept: tuple[Pack, Profile], caplog: pytest.LogCaptureFixture, field: str, other: Any
) -> None:
    pack, made = kept
    source = Program.as_compiled(pack)
    plan = make_plan(source, ARCHITECTURES["2s"])
    save_profile(made.with_limits(plan, limits(source, plan, made)), pack)
    read = load_profile(pack, replace(MACHINE, **{field: other}))
    assert Predictions(source, read).seconds(plan) == Predictions(source, made).seconds(plan)
    (warning,) = (record.getMessage() for record in caplog.records)
    words = field.replace("_", " ")
    assert f"{words} {getattr(MACHINE, field)}, this machine has {other}" in warning
    assert "no bound holds" in warning
    assert read.bound_seconds(plan) is None
    assert read.limits_of(plan) is None
    expected = Predictions(source, read).prediction(plan)
    assert expected is not None
    assert expected.bound_seconds is None
    # What is of this machine says nothing, and holds.
    caplog.clear()
    assert load_profile(pack, MACHINE).limits_of(plan) is not None
    assert not caplog.records


def test_every_difference_is_decisive_or_slight() -> None:
    values: dict[str, Any] = {
        "cores": 3,
        "threads": 3,
        "huge_pages": False,
        "reader_priority": "slice",
        "pace": 3e9,
    }
    for field in (item.name for item in fields(MACHINE)):
        other = replace(MACHINE, **{field: values.get(field, "other")})
        both = MACHINE.decisive_differences(other, True), MACHINE.slight_differences(other)
        assert sorted(map(len, both)) == [0, 1], field
        plain = MACHINE.decisive_differences(other, False)
        assert plain == ([] if field == "quantised_kernels" else both[0]), field


def test_a_profile_of_another_pack_is_refused(kept: tuple[Pack, Profile]) -> None:
    pack, made = kept
    save_profile(replace(made, manifest="f" * 16), pack)
    with pytest.raises(ProfileError, match="profile of another pack"):
        load_profile(pack, MACHINE)


@pytest.mark.parametrize(
    ("path", "value", "word"),
    [
        (("reads",), [], "reads"),
        (("pieces", 0), -1, "pieces.0"),
        (("pieces", 0), "NaN", "pieces.0"),
        (("pieces",), [0.1], "pieces: times of 1, the pack has"),
        (("resident",), None, "resident"),
        (("plans", 0, "ratio"), "inf", "plans.0.ratio"),
        (("plans", 0, "choice", "lanes"), 0, "plans.0.choice.lanes"),
        (("outside", "median"), -1e-3, "outside.median"),
        (("reads", 0, "n_bytes"), 0, "reads.0.n_bytes"),
        (("format_version",), 2, "format_version"),
        (("surprise",), 1, "surprise"),
    ],
)
def test_a_damaged_profile_is_refused(
    kept: tuple[Pack, Profile], path: tuple[Any, ...], value: object, word: str
) -> None:
    pack, made = kept
    plan = make_plan(Program.as_compiled(pack), ARCHITECTURES["2s"])
    document = json.loads(to_json(plain(made.with_plans((measured(plan, 2.0),)))))
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


def test_only_a_network_without_weights_has_no_reads(kept: tuple[Pack, Profile]) -> None:
    pack, made = kept
    document = json.loads(to_json(plain(made)))
    nothing = {**document, "reads": [], "copies": []}
    assert read_record(Profile, nothing).reads == ()
    (pack.folder / FILE).write_text(json.dumps(nothing))
    with pytest.raises(ProfileError, match="reads: no times, the pack has weights"):
        load_profile(pack, MACHINE)
    with pytest.raises(ValueError, match="none were measured of one"):
        read_record(Profile, {**document, "reads": []})
