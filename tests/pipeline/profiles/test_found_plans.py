"""Plans that are kept beside the profile they were found on."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest

from models.packs.pack import Pack, open_pack
from pipeline.fitting.fit import fit
from pipeline.fitting.wanted import LEAST, EnginePlanResult, Wanted
from pipeline.planning.found_plans import MOST_PLANS, PLANNER_VERSION, FoundPlan, FoundPlans, Point
from pipeline.planning.plan import Choice
from pipeline.profiles import found_plans_file
from pipeline.profiles.found_plans_file import KnownFile, plans_of
from pipeline.profiles.profile_file import load_profile, manifest_checksum, save_profile
from pipeline.program.program import Program
from pipeline.program.region_plan import ChannelCut, Region, RowCut
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.made_profiles import MACHINE, limits, measured, profile

KNOWN = FoundPlan(
    Choice(
        1 << 20,
        1 << 18,
        1 << 19,
        1,
        (3, 4),
        "tail",
        (
            Region(0, 5, RowCut(2)),
            Region(5, 9, ChannelCut(2, 3)),
        ),
    ),
    ("because",),
    (Point(1, 2, 0.5),),
)


def opened(path: Path) -> FoundPlans:
    plans = FoundPlans()
    plans.keep_in(KnownFile(path))
    return plans


@pytest.fixture
def pack(pack_folder: Path) -> Pack:
    """A pack with a profile, of its own for the test."""
    pack = open_pack(pack_folder)
    made = replace(profile(Program.as_compiled(pack)), manifest=manifest_checksum(pack))
    save_profile(made, pack)
    return pack


def saved(plans: FoundPlans, question: str) -> bool:
    plans.add(question, KNOWN)
    return plans.save()


def test_what_is_saved_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    plans = opened(path)
    plans.add("auto 1 None", KNOWN)
    assert not path.exists()
    assert plans.save()
    again = opened(path)
    assert again.get("auto 1 None") == KNOWN
    assert again.get("auto 2 None") is None


def test_what_two_processes_find_is_kept_of_both(tmp_path: Path) -> None:
    """A service that has loaded the file does not undo what ``plan`` writes meanwhile."""
    path = tmp_path / "plans.json"
    service, command = opened(path), opened(path)
    others = replace(KNOWN, reasons=("another",))
    for question in ("same", "other"):
        command.add(question, others)
    assert command.save()
    service.add("same", KNOWN)
    service.add("own", KNOWN)
    assert service.save()
    for plans in (service, opened(path)):
        assert [plans.get(each) for each in ("same", "other", "own")] == [KNOWN, others, KNOWN]


def test_the_oldest_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    existing = opened(path)
    for number in range(MOST_PLANS + 2):
        existing.add(str(number), KNOWN)
    existing.save()
    again = opened(path)
    kept = [number for number in range(MOST_PLANS + 2) if again.get(str(number)) is not None]
    assert kept == list(range(2, MOST_PLANS + 2))


def _changed(text: str) -> str:
    return text.replace('"ring_bytes":1048576', '"ring_bytes":4096')


def _of_another_planner(text: str) -> str:
    return text.replace(f'"planner":{PLANNER_VERSION}', f'"planner":{PLANNER_VERSION + 1}')


@pytest.mark.parametrize("edited", [_changed, _of_another_planner])
def test_what_is_not_as_it_was_written_is_ignored(
    edited: Callable[[str], str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "plans.json"
    saved(opened(path), "auto 1 None")
    text = path.read_text("utf-8")
    assert edited(text) != text
    path.write_text(edited(text), "utf-8")
    assert opened(path).get("auto 1 None") is None
    assert "ignored" in caplog.text


@pytest.mark.parametrize(
    "changed", ['"rows":2', '"cut":{}', '"cut":{"rows":0}', '"cut":{"rows":2,"groups":3}']
)
def test_a_region_of_another_form_is_never_taken_for_one(
    changed: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "plans.json"
    saved(opened(path), "auto 1 None")
    text = path.read_text("utf-8")
    assert '"cut":{"rows":2}' in text
    path.write_text(text.replace('"cut":{"rows":2}', changed), "utf-8")
    assert opened(path).get("auto 1 None") is None
    assert "ignored" in caplog.text


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b'{"format_version": 2}', b"null"])
def test_a_damaged_file_is_as_none(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "plans.json"
    path.write_bytes(content)
    existing = opened(path)
    assert existing.get("auto 1 None") is None
    assert str(path) in caplog.text
    assert saved(existing, "auto 1 None")
    assert opened(path).get("auto 1 None") == KNOWN


@pytest.mark.parametrize("field", ["lanes", "depth"])
def test_a_choice_that_nobody_can_make_is_ignored(
    field: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sealed or not: without lanes a plan would count less memory than it takes."""
    path = tmp_path / "plans.json"
    changes: dict[str, Any] = {field: 0}
    existing = opened(path)
    existing.add("auto 1 None", replace(KNOWN, choice=replace(KNOWN.choice, **changes)))
    assert existing.save()
    assert opened(path).get("auto 1 None") is None
    assert "ignored" in caplog.text


def test_what_cannot_be_written_is_known_until_the_end(tmp_path: Path) -> None:
    existing = opened(tmp_path / "missing" / "plans.json")
    assert not saved(existing, "auto 1 None")
    assert existing.get("auto 1 None") == KNOWN


def asked(
    pack: Pack, wanted: Wanted, name: str = "auto", profiled: bool = True
) -> EnginePlanResult:
    """Return what a process of its own answers; it saves what it finds."""
    existing = plans_of(pack)
    profile = load_profile(pack, MACHINE) if profiled else None
    found = fit(Program.as_compiled(pack), ARCHITECTURES[name], wanted, profile, existing)
    assert existing.save()
    return found


def no_search(*_: object) -> NoReturn:
    pytest.fail("searched again")


@pytest.mark.parametrize("name", ["auto", "2s-md"])
def test_a_plan_is_searched_once(name: str, pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = Wanted(weight_bytes=Program.as_compiled(pack).weight_bytes // 2)
    first = asked(pack, wanted, name)
    monkeypatch.setattr("pipeline.fitting.plan_search.streams", no_search)
    monkeypatch.setattr("pipeline.fitting.ring_search.search", no_search)
    assert asked(pack, wanted, name) == first


@pytest.mark.parametrize("wanted", [LEAST, Wanted(total_bytes=1 << 20)])
def test_what_is_found_without_a_profile_is_kept_too(
    wanted: Wanted, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = asked(pack, wanted, profiled=False)
    monkeypatch.setattr("pipeline.fitting.plan_search.row_variants", no_search)
    assert asked(pack, wanted, profiled=False) == first
    # No times decide on the least: with a profile it is the same.
    if wanted.least:
        assert asked(pack, wanted).plan == first.plan


def test_another_profile_is_another_question(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    wanted = Wanted(total_bytes=1 << 20)
    existing = plans_of(pack)
    for seconds in (1e-3, 1e-3, 2e-3):
        fit(
            program,
            ARCHITECTURES["auto"],
            wanted,
            profile(program, seconds),
            existing,
        )
    assert existing.save()
    assert len(json.loads((pack.folder / found_plans_file.FILE).read_text("utf-8"))["plans"]) == 2


def test_the_least_is_the_smallest_that_any_search_found(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    existing, auto = plans_of(pack), ARCHITECTURES["auto"]
    least = fit(program, auto, LEAST, None, existing)
    question = next(iter(existing.all().plans))
    smaller = FoundPlan(least.plan.choice, total_bytes=least.plan.total_bytes + 1)
    existing.add(question, smaller)
    found = fit(program, auto, Wanted(total_bytes=least.plan.total_bytes), None, existing)
    assert existing.all().plans[question].total_bytes == found.plan.total_bytes


def test_what_a_race_measures_is_another_question(pack: Pack) -> None:
    """What was found by estimates gives way to it."""
    program, auto = Program.as_compiled(pack), ARCHITECTURES["auto"]
    estimated, existing = load_profile(pack, MACHINE), plans_of(pack)
    small = fit(program, auto, LEAST, estimated, existing).plan
    usual = fit(program, auto, Wanted(total_bytes=1 << 30), estimated, existing)
    assert usual.plan.choice != small.choice
    raced = estimated.with_plans((measured(small, 0.1), measured(usual.plan, 1.0)))
    for _ in range(2):
        found = fit(program, auto, Wanted(total_bytes=1 << 30), raced, existing)
        assert found.plan.choice == small.choice
    again = fit(program, auto, Wanted(total_bytes=1 << 30), estimated, existing)
    assert again.plan.choice == usual.plan.choice


def test_plans_outlive_the_limits_that_are_measured_of_one(
    pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``profile --bound`` adds limits of the plan that a service then has to take."""
    wanted = Wanted(total_bytes=1 << 20)
    existing, plan = load_profile(pack, MACHINE), asked(pack, wanted).plan
    of_plan = limits(Program.as_compiled(pack), plan, existing)
    save_profile(existing.with_limits(plan, of_plan), pack)
    monkeypatch.setattr("pipeline.fitting.plan_search.row_variants", no_search)
    again = asked(pack, wanted)
    assert again.plan == plan
    assert again.bound_seconds == of_plan.bound_seconds(plan)


def test_a_choice_that_makes_no_plan_is_searched_again(pack: Pack) -> None:
    wanted = Wanted(weight_bytes=Program.as_compiled(pack).weight_bytes // 2)
    found = asked(pack, wanted)
    path = pack.folder / found_plans_file.FILE
    ring = f'"ring_bytes":{found.plan.choice.ring_bytes}'
    text = path.read_text("utf-8")
    assert ring in text
    path.write_text(text.replace(ring, '"ring_bytes":1'), "utf-8")
    assert asked(pack, wanted) == found
    assert ring in path.read_text("utf-8")


def test_what_is_found_and_is_not_what_is_wanted_is_searched_again(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    auto, wanted = ARCHITECTURES["auto"], Wanted(total_bytes=500_000)
    measured, existing = load_profile(pack, MACHINE), plans_of(pack)
    first = fit(program, auto, wanted, measured, existing)
    assert existing.save()
    kept = json.loads((pack.folder / found_plans_file.FILE).read_text("utf-8"))["plans"]
    everything = fit(program, auto, Wanted(total_bytes=1 << 30), measured, existing)
    assert everything.plan.total_bytes > 500_000
    for question in kept:
        existing.add(question, FoundPlan(everything.plan.choice))
    assert fit(program, auto, wanted, measured, existing) == first
