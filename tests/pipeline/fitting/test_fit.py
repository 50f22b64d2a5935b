"""The one decision: what is wanted is kept or refused with figures, whatever a profile says."""

import itertools
import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from pydantic import TypeAdapter

from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from pipeline.fitting.fit import fit, fit_lanes
from pipeline.fitting.trade_off import frontier
from pipeline.fitting.wanted import LEAST, NOTHING, EnginePlanResult, Wanted
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.plan import Plan, PlanError
from pipeline.profiles.delay_limits import MOST_SECONDS
from pipeline.profiles.profile import Profile
from pipeline.profiles.times import Distribution
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.examples import over, thinned
from tests.models import nets
from tests.pipeline.made_profiles import limits, profile
from tests.pipeline.small import maps_program, small_pack
from tests.pipeline.synthetic import program, programs

AUTO = ARCHITECTURES["auto"]
FASTEST = Wanted(total_bytes=1 << 40)
#: Thirty layers, whose weights take a fifteenth of their kernels' time to read.
LAYERS = program([16] * 30, [True] * 30)
_MS = re.compile(r"([0-9.]+) ms; give")


def within(existing: Profile, total_bytes: int) -> Plan:
    return fit(LAYERS, AUTO, Wanted(total_bytes=total_bytes), existing).plan


def bounded(*sizes: int) -> tuple[Profile, list[Plan]]:
    """Return a profile with limits of the plans within ``sizes``, and these."""
    existing = profile(LAYERS, bytes_a_second=1e8)
    plans = [within(existing, n_bytes) for n_bytes in sizes]
    for plan in plans:
        existing = existing.with_limits(plan, limits(LAYERS, plan, existing))
    return existing, plans


SMALL, MIDDLE, LARGE = 6 << 16, 12 << 16, 40 << 16


def test_a_deadline_rests_on_what_was_measured_of_the_smallest_plan_that_keeps_it() -> None:
    existing, plans = bounded(SMALL, MIDDLE, LARGE)
    bounds = [existing.bound_seconds(plan) for plan in plans]
    seconds = [bound for bound in bounds if bound is not None]
    assert seconds == sorted(set(seconds), reverse=True)
    for plan, bound in zip(plans, seconds, strict=True):
        constraints = Wanted(delay_seconds=1.001 * bound, guaranteed=True)
        result = fit(LAYERS, AUTO, constraints, existing)
        assert result.plan == plan
        assert result.bound_seconds == bound
    # An estimate alone promises nothing: with the bound of the middle one only that is taken.
    alone = profile(LAYERS, bytes_a_second=1e8).with_limits(
        plans[1], limits(LAYERS, plans[1], existing)
    )
    for delay in (1.001 * seconds[1], 1.001 * seconds[0]):
        constraints = Wanted(delay_seconds=delay, guaranteed=True)
        assert fit(LAYERS, AUTO, constraints, alone).plan == plans[1]


def test_a_deadline_below_all_bounds_is_refused_with_the_smallest_bound_that_fits() -> None:
    existing, plans = bounded(SMALL, MIDDLE, LARGE)
    for total, best in ((None, plans[2]), (plans[2].total_bytes - 1, plans[1])):
        constraints = Wanted(total_bytes=total, delay_seconds=1e-3, guaranteed=True)
        with pytest.raises(PlanError, match="below the least bound that was measured") as refused:
            fit(LAYERS, AUTO, constraints, existing)
        result = _MS.search(str(refused.value))
        assert result is not None
        reached = fit(
            LAYERS, AUTO, replace(constraints, delay_seconds=float(result[1]) / 1e3), existing
        )
        assert reached.plan == best


@pytest.mark.parametrize("total", [None, LARGE])
def test_a_deadline_without_a_bound_is_refused_with_what_measures_one(total: int | None) -> None:
    existing, (plan,) = bounded(LARGE)
    elsewhere = replace(existing, exact=False)
    constraints = Wanted(total_bytes=total, delay_seconds=1.0, guaranteed=True)
    assert fit(LAYERS, AUTO, constraints, existing).plan == plan
    less = replace(constraints, total_bytes=plan.total_bytes - 1)
    for profiled, asked in (
        (profile(LAYERS), constraints),
        (elsewhere, constraints),
        (existing, less),
    ):
        with pytest.raises(
            PlanError, match=r"needs a bound, and no plan.*profile --bound"
        ) as refused:
            fit(LAYERS, AUTO, asked, profiled)
        assert " inf " not in str(refused.value)
    # As a rule of thumb it is fast enough.
    assert (
        fit(LAYERS, AUTO, replace(constraints, guaranteed=False), elsewhere).bound_seconds is None
    )


@pytest.mark.parametrize("total", [None, MIDDLE])
def test_a_time_that_cannot_be_reached_is_refused_with_one_that_can(total: int | None) -> None:
    existing = profile(LAYERS, bytes_a_second=1e8)
    constraints = Wanted(total_bytes=total, delay_seconds=1e-4)
    with pytest.raises(PlanError, match="delay") as refused:
        fit(LAYERS, AUTO, constraints, existing)
    result = _MS.search(str(refused.value))
    assert result is not None
    seconds = float(result[1]) / 1e3
    reached = fit(LAYERS, AUTO, replace(constraints, delay_seconds=seconds), existing)
    assert reached.prediction is not None
    assert reached.prediction.delay_seconds <= seconds
    assert total is None or reached.plan.total_bytes <= total


def test_a_delay_is_reached_with_little_memory() -> None:
    existing = profile(LAYERS, bytes_a_second=1e8)
    slow, fast = (
        fit(LAYERS, AUTO, constraints, existing)
        for constraints in (LEAST, Wanted(total_bytes=LARGE))
    )
    assert slow.predicted_seconds is not None
    assert fast.predicted_seconds is not None
    target = (slow.predicted_seconds + fast.predicted_seconds) / 2
    result = fit(LAYERS, AUTO, Wanted(delay_seconds=target), existing)
    assert result.predicted_seconds is not None
    assert result.predicted_seconds <= target
    assert slow.plan.total_bytes < result.plan.total_bytes < fast.plan.total_bytes
    middle = (slow.plan.total_bytes + result.plan.total_bytes) // 2
    less = fit(LAYERS, AUTO, Wanted(total_bytes=middle), existing)
    assert less.predicted_seconds is not None
    assert less.predicted_seconds > target


def test_a_time_is_that_of_a_request_and_not_of_its_sweep_alone() -> None:
    outside = Distribution(count=1, median=0.004, p95=0.004, max=0.020)
    existing, (plan,) = bounded(LARGE)
    existing = replace(existing, outside=outside)
    bound = existing.bound_seconds(plan)
    assert bound is not None
    usual = fit(LAYERS, AUTO, Wanted(total_bytes=LARGE), existing).predicted_seconds
    assert usual is not None
    for guaranteed, seconds in ((False, usual + 0.004), (True, bound + 0.020)):
        constraints = Wanted(total_bytes=LARGE, delay_seconds=seconds + 1e-6, guaranteed=guaranteed)
        assert fit(LAYERS, AUTO, constraints, existing).plan.total_bytes <= LARGE
        with pytest.raises(PlanError, match="give at least that"):
            fit(LAYERS, AUTO, replace(constraints, delay_seconds=seconds - 1e-3), existing)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("has_profile", [False, True])
def test_what_is_wanted_is_kept_or_refused(name: str, has_profile: bool, tiny_pack: Pack) -> None:
    network, architecture = Program.as_compiled(tiny_pack), ARCHITECTURES[name]
    existing = profile(network) if has_profile else None
    for limit in (1 << 12, 1 << 18, 1 << 20):
        for constraints in (
            Wanted(total_bytes=limit),
            Wanted(weight_bytes=limit),
            Wanted(total_bytes=1 << 20, weight_bytes=limit),
            Wanted(total_bytes=limit, ring_bytes=limit >> 1),
        ):
            try:
                plan = fit(network, architecture, constraints, existing).plan
            except PlanError as exc:
                assert re.search("bytes|profile", str(exc))  # noqa: PT017
                continue
            assert plan.total_bytes <= (constraints.total_bytes or plan.total_bytes)
            assert plan.weight_bytes <= (constraints.weight_bytes or plan.weight_bytes)


def test_nothing_is_smaller_than_the_least(tiny_pack: Pack) -> None:
    network = Program.as_compiled(tiny_pack)
    smallest = fit(network, AUTO, LEAST).plan.total_bytes
    assert fit(network, AUTO, Wanted(total_bytes=smallest)).plan.total_bytes == smallest
    with pytest.raises(
        PlanError, match=f"required .* available .*{smallest - 1} bytes.* excess 1 b"
    ):
        fit(network, AUTO, Wanted(total_bytes=smallest - 1))
    assert fit(network, AUTO, NOTHING).plan.total_bytes > smallest


@pytest.mark.parametrize(
    ("net", "name"),
    thinned(
        itertools.product(
            (nets.residual, nets.batched, nets.gemm, nets.two_by_two),
            ("auto", "pre", "2s", "sync"),
        ),
        3,
    ),
)
def test_no_rule_finds_a_smaller_plan_than_the_least(
    net: Callable[[], onnx.ModelProto], name: str, tmp_path: Path
) -> None:
    """Fewer launches with more weights in memory may take less than streaming as little as possible."""
    source = nets.written(net(), tmp_path / "net.onnx")
    options = CompileOptions(chunk_bytes=nets.CHUNK_BYTES)
    network = Program.as_compiled(open_pack(compile_onnx(source, tmp_path / "net", options)))
    architecture = ARCHITECTURES[name]
    smallest = fit(network, architecture, LEAST).plan.total_bytes
    for factor in (1, 1.01, 1.5):
        constraints = Wanted(total_bytes=round(factor * smallest))
        assert (
            smallest
            <= fit(network, architecture, constraints).plan.total_bytes
            <= factor * smallest + 1
        )
    assert fit(network, architecture).plan.total_bytes >= smallest


def test_a_frontier_has_less_time_for_more_memory() -> None:
    layers = program([16] * 7, [True] * 7)
    points = frontier(layers, AUTO, profile=profile(layers, bytes_a_second=1e8))
    assert len(points) > 4
    for smaller, larger in pairwise(points):
        assert smaller.plan.total_bytes < larger.plan.total_bytes
        assert larger.seconds <= smaller.seconds * 1.01


@pytest.mark.parametrize("kernel", [0.0, MOST_SECONDS])
@pytest.mark.parametrize("bytes_a_second", [1e5, 1e9, math.inf])
def test_planning_ends_whatever_a_profile_says(kernel: float, bytes_a_second: float) -> None:
    existing = profile(LAYERS, kernel, bytes_a_second)
    for limit in (6, 29):
        constraints = Wanted(total_bytes=limit << 16)
        assert fit(LAYERS, AUTO, constraints, existing).plan.total_bytes <= limit << 16


@over("seconds", [math.nan, math.inf, -1.0, 1e300])
def test_what_is_no_time_is_in_no_profile(seconds: float) -> None:
    with pytest.raises(ValueError, match="max"):
        TypeAdapter(Distribution).validate_python(
            {"count": 1, "median": 0.0, "p95": 0.0, "max": seconds}
        )


# Plans with lanes: never more than there is room for, as many as that allows, one where it is tight.


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Pack:
    return open_pack(small_pack(Path(tmp_path_factory.mktemp("repository"))))


def test_as_many_lanes_as_there_is_room_for(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    smallest = fit(program, AUTO, LEAST).plan
    result = []
    for room in (smallest.total_bytes, 2 * smallest.total_bytes, 4 * smallest.total_bytes, 1 << 40):
        plan = fit_lanes(program, AUTO, Wanted(total_bytes=room), None, 4).plan
        assert plan.total_bytes <= room
        assert plan.choice.lanes * plan.lane_bytes == plan.arena_bytes
        result.append(plan.choice.lanes)
    assert result == sorted(result)
    assert (result[0], result[-1]) == (1, 4)


def test_one_lane_is_what_fit_says(pack: Pack) -> None:
    program = Program.as_compiled(pack)
    constraints = Wanted(total_bytes=1 << 30)
    one, usual = fit_lanes(program, AUTO, constraints, None, 1), fit(program, AUTO, constraints)
    assert one.plan.choice == usual.plan.choice
    assert (one.reasons, one.enough_bytes) == (usual.reasons, usual.enough_bytes)


def test_it_says_how_many_and_what_one_takes(pack: Pack) -> None:
    fitted = fit_lanes(Program.as_compiled(pack), AUTO, Wanted(total_bytes=1 << 30), None, 4)
    assert any("4 lanes of 4" in reason for reason in fitted.reasons)


@pytest.mark.parametrize("step", thinned([-2, 2], 2))
def test_a_network_of_which_only_copies_run_on_rows(step: int, tmp_path: Path) -> None:
    """No region ends where there is no operator before it."""
    bounds = ("-1", "-1000") if step < 0 else ("0", "1000")
    constants = zip("besa", (*bounds, str(step), "1"), strict=True)
    nodes = [f"{name} = Constant<value_ints=[{value}]>()" for name, value in constants]
    text = "\n".join(
        [
            *nodes,
            "p = Slice(x, b, e, a, s)",
            "n = Neg(p)",
            "c = Concat<axis=1>(p, n, p)",
            "y = Softmax<axis=3>(c)",
        ]
    )
    model = nets.parsed(f"copies (float[1,16,8,8] x) => (float y) {{ {text} }}")
    pack = open_pack(compile_onnx(nets.written(model, tmp_path / "m.onnx"), tmp_path / "m"))
    network = Program.as_compiled(pack)
    assert not network.row_operators
    assert any(value.end_piece for value in network.row_values)
    assert fit(network, AUTO, LEAST).plan.total_bytes > 0


@pytest.mark.parametrize("has_profile", [False, True])
@given(network=programs())
def test_more_than_is_enough_changes_nothing(network: Program, has_profile: bool) -> None:
    plans, times_of = FoundPlans(), profile(network) if has_profile else None

    def planned(n_bytes: int, *cache: FoundPlans) -> EnginePlanResult:
        return fit(network, AUTO, Wanted(total_bytes=n_bytes), times_of, *cache)

    minimum = fit(network, AUTO, LEAST, times_of).plan.total_bytes
    ample = minimum + 4 * network.weight_bytes + (1 << 20)
    fastest = planned(ample, plans)
    enough = fastest.enough_bytes
    assert enough is not None
    assert enough <= ample
    for n_bytes in (enough, enough + 1, ample - 1, ample + 1, 2 * ample):
        assert planned(n_bytes, plans) == planned(n_bytes) == fastest
    # Of any limit, and the smallest, where a search has come upon a smaller one.
    assert len(plans.all().plans) <= 2
    for eighth in range(8):
        n_bytes = minimum + (enough - minimum) * eighth // 8
        assert planned(n_bytes, plans) == planned(n_bytes)
        enough_now = planned(n_bytes).enough_bytes
        assert enough_now is None or enough_now <= n_bytes


@pytest.mark.parametrize("name", ["maps", "small", "gemm"])
def test_what_is_enough_is_so_in_every_budget(name: str, tmp_path: Path) -> None:
    """From the smallest to twice all memory, of networks on rows and whole ones."""
    if name == "maps":
        network = maps_program(tmp_path)
    elif name == "small":
        network = Program.as_compiled(open_pack(small_pack(tmp_path)))
    else:
        source = nets.written(nets.gemm(), tmp_path / "net.onnx")
        network = Program.as_compiled(open_pack(compile_onnx(source, tmp_path / "net")))
    smallest, most = (
        fit(network, AUTO, constraints).plan.total_bytes for constraints in (LEAST, FASTEST)
    )
    budgets = [round(smallest * (2 * most / smallest) ** (step / 24)) for step in range(25)]
    result = [fit(network, AUTO, Wanted(total_bytes=n_bytes)) for n_bytes in budgets]
    existing = [fitted.enough_bytes for fitted in result]
    assert (existing[0], existing[-1]) == (None, fit(network, AUTO, FASTEST).enough_bytes)
    for n_bytes, fitted in zip(budgets, result, strict=True):
        if fitted.enough_bytes is not None:
            assert fitted.enough_bytes <= n_bytes
            enough = fit(network, AUTO, Wanted(total_bytes=fitted.enough_bytes))
            for same in (result[-1], enough):
                assert fitted.plan.choice == same.plan.choice
                assert fitted.reasons == same.reasons
