"""Tiles in plans: where a profile shows them faster, and nowhere else; with the memory that was counted."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from loader.pool.pool import ReadPool
from models.packs.manifest import Manifest
from models.packs.pack import Pack
from models.packs.target import host_target
from pipeline.devices.cpu import CpuDevice
from pipeline.fitting.fit import fit
from pipeline.fitting.frontier import frontier
from pipeline.fitting.partitioned import fit_partitions
from pipeline.fitting.row_variants import row_variants
from pipeline.fitting.wanted import LEAST, Wanted
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.make import make_plan
from pipeline.planning.partitions.plan import PipelinePlan
from pipeline.planning.plan import Choice, Plan
from pipeline.planning.rows.explain import explain_regions
from pipeline.planning.rows.live_values import LiveValues
from pipeline.planning.rows.tilings import DOUBT
from pipeline.planning.rows.variants import Variant
from pipeline.profiles.found_plans_file import KnownFile
from pipeline.profiles.profile import Profile
from pipeline.profiles.row_kernels import MeasuredRows, measured_tiles
from pipeline.program.lives import lifetimes
from pipeline.program.regions import Region
from pipeline.program.steps import regions_of, row_network
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.timing.simulator import simulate
from tests.pipeline.execution.test_rows import CASES, Machine, answers, compiled, same_bits
from tests.pipeline.made_times import timed_profile

pytestmark = pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")

AUTO = ARCHITECTURES["auto"]
_FAST, _EVEN, _SLOW = 0.2, 1.0, 2.0


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    """Of a network whose maps take more than its picture and its weights: two residual blocks."""
    residual = CASES["residual"]
    weights = {**residual.weights, "wa": (32, 3, 3, 3)}
    case = replace(residual, weights=weights, source="1,3,64,64")
    return compiled(case, tmp_path_factory.mktemp("residual"))


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    with closing(ReadPool()) as pool, closing(CpuDevice()) as device:
        yield device, pool


@pytest.fixture(scope="module")
def fast(pack: Pack) -> Profile:
    return timed_profile(pack.manifest, _FAST)


def on_tiles(regions: tuple[Region, ...]) -> list[Region]:
    return [region for region in regions if region.columns is not None]


def variants(manifest: Manifest, tiles: float | None) -> tuple[Variant, ...]:
    return row_variants(manifest, AUTO, timed_profile(manifest, tiles))


@pytest.mark.parametrize("tiles", [None, _EVEN, _SLOW])
def test_slow_tiles_are_never_proposed(pack: Pack, tiles: float | None) -> None:
    assert variants(pack.manifest, tiles) == variants(pack.manifest, None)
    assert not any(variant.on_tiles for variant in variants(pack.manifest, tiles))


def test_tiles_of_noisy_measurements_are_not_proposed(pack: Pack, fast: Profile) -> None:
    """Fast as a rule, but seen to take as long as rows: the profile does not show them faster."""
    noisy = {
        key: replace(item, p95=5 * item.median) if key.startswith("tiles") else item
        for key, item in fast.kernels.items()
    }
    profile = fast.model_copy(update={"kernels": noisy})
    assert row_variants(pack.manifest, AUTO, profile) == variants(pack.manifest, None)


def test_fast_tiles_are_proposed_beside_rows(pack: Pack) -> None:
    """Each is faster than all rows in no more memory, by more than a profile may be wrong."""
    found = variants(pack.manifest, _FAST)
    rows = [variant for variant in found if not variant.on_tiles]
    tiles = [variant for variant in found if variant.on_tiles]
    assert tiles
    assert tuple(rows) == variants(pack.manifest, None)
    for variant in tiles:
        assert variant.doubt_seconds > 0
        assert variant.seconds < min(
            item.seconds for item in rows if item.n_bytes <= variant.n_bytes
        )
    assert list(found) == sorted(found, key=lambda item: (item.seconds, item.n_bytes))


def test_tiled_regions_take_the_bytes_that_were_counted(pack: Pack) -> None:
    """What is live while a region runs: its strips, what it reads and writes, and what passes by."""
    manifest = pack.manifest
    live = LiveValues(manifest, row_network(manifest))
    proposed = {item for variant in variants(manifest, _FAST) for item in on_tiles(variant.regions)}
    assert proposed
    for region in proposed:
        plan = make_plan(manifest, ARCHITECTURES["pre"], choice=Choice(regions=(region,)))
        (held,) = regions_of(plan.steps)
        first, count = region.first_piece, len(held.plan.operators)
        lives = lifetimes(manifest, plan.steps, kept=range(len(manifest.spans)))
        most = max(
            sum(life.n_bytes for life in lives if life.start <= moment < life.end)
            for moment in range(first, first + count)
        )
        touched = held.plan.read | held.plan.written
        beside = live.beside(first, region.end_piece, touched, on_tiles=True)
        assert most == beside + held.plan.live_bytes()


def test_plans_take_tiles_only_where_they_are_faster_in_no_more_memory(
    pack: Pack, fast: Profile
) -> None:
    unknown = timed_profile(pack.manifest, None)
    least = fit(pack.manifest, AUTO, LEAST, unknown).plan.total_bytes
    taken = 0
    for step in range(6):
        wanted = Wanted(total_bytes=round(least * 1.3**step))
        rows = fit(pack.manifest, AUTO, wanted, unknown)
        tiles = fit(pack.manifest, AUTO, wanted, fast)
        assert tiles.plan.total_bytes <= (wanted.total_bytes or 0)
        if on_tiles(tiles.plan.choice.regions):
            taken += 1
            assert (1 + DOUBT) * seconds(tiles.plan, fast) < seconds(rows.plan, unknown)
        else:
            assert tiles.plan.choice == rows.plan.choice
    assert taken


def seconds(plan: Plan, profile: Profile) -> float:
    """Return the kernels of ``plan``."""
    return sum(profile.durations(plan).stages[-1])


def test_plans_on_tiles_have_the_bits_of_the_whole(
    pack: Pack, fast: Profile, machine: Machine
) -> None:
    expected = answers(pack, machine)
    found = [item for item in row_variants(pack.manifest, AUTO, fast) if item.on_tiles]
    for variant in {item.regions: item for item in (found[0], found[-1])}.values():
        assert same_bits(answers(pack, machine, variant.regions, "auto"), expected)


def test_plans_on_tiles_are_explained_and_found_again(pack: Pack, tmp_path: Path) -> None:
    made, file = timed_profile(pack.manifest, _FAST), KnownFile(tmp_path / "plans.json")
    known, again = FoundPlans(), FoundPlans()
    known.keep_in(file)
    wanted = Wanted(total_bytes=3 * fit(pack.manifest, AUTO, LEAST, made).plan.total_bytes // 2)
    plan = fit(pack.manifest, AUTO, wanted, made, known).plan
    assert on_tiles(plan.choice.regions)
    lines = list(explain_regions(pack.manifest, plan))
    assert any(line.startswith("on tiles, ") and "columns at a time" in line for line in lines)
    assert known.save()
    again.keep_in(file)
    assert fit(pack.manifest, AUTO, wanted, made, again).plan.choice == plan.choice


def test_plans_on_tiles_are_bounded_and_simulated(pack: Pack, fast: Profile) -> None:
    """By the worst that tiles were seen to take; what a deadline asks for is reached with them."""
    wanted = Wanted(total_bytes=3 * fit(pack.manifest, AUTO, LEAST, fast).plan.total_bytes // 2)
    slower = {
        key: replace(item, max=2 * item.max) if key.startswith("tiles") else item
        for key, item in fast.kernels.items()
    }
    profile = Profile.model_validate({**fast.model_dump(), "kernels": slower})
    found = fit(pack.manifest, AUTO, wanted, profile)
    assert on_tiles(found.plan.choice.regions)
    assert found.prediction is not None
    assert found.prediction.bound_seconds is not None
    assert found.prediction.bound_seconds > 1.5 * found.prediction.sweep_seconds
    simulated = simulate(found.plan.stages, profile.durations(found.plan))
    assert simulated.delay_seconds == pytest.approx(found.prediction.delay_seconds)
    for guaranteed in (False, True):
        delay = 1.1 * (
            found.prediction.bound_seconds if guaranteed else found.prediction.delay_seconds
        )
        in_time = Wanted(delay_seconds=delay, guaranteed=guaranteed)
        assert on_tiles(fit(pack.manifest, AUTO, in_time, profile).plan.choice.regions)


def test_partitions_have_no_tiles(pack: Pack, fast: Profile) -> None:
    """A profile is of the whole network: they are planned without."""
    plan = fit_partitions(pack.manifest, AUTO, 2, profile=fast).plan
    assert isinstance(plan, PipelinePlan)
    assert not any(on_tiles(part.choice.regions) for part in plan.partitions)


@pytest.mark.slow
def test_plans_on_tiles_are_points_of_the_frontier(pack: Pack, fast: Profile) -> None:
    points = frontier(pack.manifest, AUTO, profile=fast)
    assert any(on_tiles(point.plan.choice.regions) for point in points)
    assert any(not on_tiles(point.plan.choice.regions) for point in points)


def test_times_of_tiles_are_between_those_measured(pack: Pack) -> None:
    network = row_network(pack.manifest)
    for tiles in (_FAST, _SLOW):
        times = timed_profile(pack.manifest, tiles).row_times(network)
        for number, item in enumerate(network.operators):
            value = network.values[item.output]
            width = value.shape[3]
            assert times.call(number, 16, width) == times.call(number, 16)
            for rows, columns in measured_tiles(value, item):
                narrow, whole = times.call(number, rows, columns), times.call(number, rows)
                between = times.call(number, rows, (columns + width) // 2)
                assert between == pytest.approx((narrow + whole) / 2)


def test_unmeasured_tiles_take_what_rows_of_as_many_elements_do(pack: Pack) -> None:
    network = row_network(pack.manifest)
    times = timed_profile(pack.manifest, None).row_times(network)
    assert isinstance(times, MeasuredRows)
    assert not times.tiles
    assert times.call(1, 4, 20) == times.call(1, 2)
    assert times.move(4096, 1000) == times.move(4096)
