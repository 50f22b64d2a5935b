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
from pydantic import TypeAdapter

from models.compiler import CompileOptions, compile_onnx
from models.packs.pack import Pack, open_pack
from pipeline.fitting.fit import fit, fit_lanes
from pipeline.fitting.trade_off import frontier
from pipeline.fitting.wanted import LEAST, NOTHING, Fitted, Wanted
from pipeline.planning.draft import Drafts
from pipeline.planning.plan import Choice, PlanError
from pipeline.planning.tune import critical_reads
from pipeline.profiles.delay_limits import MOST_SECONDS, SweepLimits
from pipeline.profiles.profile import Profile
from pipeline.profiles.times import Distribution
from pipeline.program.program import Program
from pipeline.program.stopping import telling
from pipeline.schedule.architectures import ARCHITECTURES
from pipeline.timing.durations import services
from tests.examples import over, thinned
from tests.models import nets
from tests.pipeline.made_profiles import profile
from tests.pipeline.plans import swept
from tests.pipeline.small import maps_program, small_pack
from tests.pipeline.synthetic import program

AUTO = ARCHITECTURES["auto"]
#: Thirty layers, whose weights take a fifteenth of their kernels' time to read.
LAYERS = program([16] * 30, [True] * 30)
_MS = re.compile(r"([0-9.]+) ms; give")


def with_slow_reads(network: Program, factor: float) -> Profile:
    """Return a profile whose reads have once taken ``factor`` times as long as they usually do."""
    usual = profile(network)
    return usual.model_copy(
        update={
            "reads": tuple(
                replace(item, seconds=worst(item.seconds, factor)) for item in usual.reads
            )
        }
    )


def worst(usual: Distribution, factor: float) -> Distribution:
    return replace(usual, max=factor * usual.max)


def times(fitted: Fitted) -> tuple[float, float]:
    """Return delay and bound of a request."""
    expected = fitted.prediction
    assert expected is not None
    assert expected.bound_seconds is not None
    return expected.delay_seconds, expected.bound_seconds


def test_a_deadline_is_searched_by_the_bound_that_judges_it() -> None:
    known = with_slow_reads(LAYERS, 50)
    seconds = 0.040
    usual = fit(LAYERS, AUTO, Wanted(delay_seconds=seconds), known)
    # Enough as a rule; a plan that is bounded by as much has to keep more weights.
    assert times(usual)[0] <= seconds < times(usual)[1]
    bounded = fit(LAYERS, AUTO, Wanted(delay_seconds=seconds, guaranteed=True), known)
    assert times(bounded)[1] <= seconds
    everything = fit(LAYERS, ARCHITECTURES["pre"]).plan
    assert usual.plan.weight_bytes < bounded.plan.weight_bytes < everything.weight_bytes


def test_a_deadline_may_rest_on_what_was_measured_of_one_plan() -> None:
    """Maxima bound every plan badly; sweeps of the one that a service has were measured."""
    known, within = with_slow_reads(LAYERS, 500), Wanted(total_bytes=20 << 16)
    plan = fit(LAYERS, AUTO, within, known).plan
    sweep = swept(plan.stages, known.durations(plan))
    served = services(plan.stages, sweep.events, plan.choice.depth)
    limits = SweepLimits.of(plan, [(served, sweep.delay_seconds)])
    seconds = 1.01 * limits.bound_seconds(plan)
    wanted = replace(within, delay_seconds=seconds, guaranteed=True)
    with pytest.raises(PlanError, match="below the bound"):
        fit(LAYERS, AUTO, wanted, known)
    found = fit(LAYERS, AUTO, wanted, known.with_limits(plan, limits))
    assert found.plan == plan
    assert times(found)[1] <= seconds


@pytest.mark.parametrize(("total", "guaranteed"), [(None, False), (20 << 16, True)])
def test_a_time_that_cannot_be_reached_is_refused_with_one_that_can(
    total: int | None, guaranteed: bool
) -> None:
    known = with_slow_reads(LAYERS, 10)
    wanted = Wanted(total_bytes=total, delay_seconds=1e-4, guaranteed=guaranteed)
    with pytest.raises(PlanError, match="bound" if guaranteed else "delay") as refused:
        fit(LAYERS, AUTO, wanted, known)
    found = _MS.search(str(refused.value))
    assert found is not None
    seconds = float(found[1]) / 1e3
    reached = fit(LAYERS, AUTO, replace(wanted, delay_seconds=seconds), known)
    assert times(reached)[guaranteed] <= seconds
    assert total is None or reached.plan.total_bytes <= total


def test_a_time_is_that_of_a_request_and_not_of_its_sweep_alone() -> None:
    outside = Distribution(count=1, median=0.004, p95=0.004, max=0.020)
    known = with_slow_reads(LAYERS, 1).model_copy(update={"outside": outside})
    for guaranteed in (False, True):
        wanted = Wanted(delay_seconds=0.055, guaranteed=guaranteed)
        assert times(fit(LAYERS, AUTO, wanted, known))[guaranteed] <= 0.055
    with pytest.raises(PlanError, match="bound"):
        fit(LAYERS, AUTO, Wanted(delay_seconds=0.035, guaranteed=True), known)


@pytest.mark.parametrize("has_profile", [False, True])
def test_no_way_is_planned_whose_kernels_alone_take_longer(
    has_profile: bool, tmp_path: Path
) -> None:
    """Where everything has room, the second way to run parts on rows is not, nor those after it."""
    network = maps_program(tmp_path)
    known = profile(network) if has_profile else None
    told = list[tuple[int, int]]()
    with telling(lambda step, done, of: told.append((done, of)) if "ways" in step else None):
        fit(network, AUTO, Wanted(total_bytes=1 << 30), known)
    assert [done for done, of in told if of > 2] == [1, 2]


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("has_profile", [False, True])
def test_what_is_wanted_is_kept_or_refused(name: str, has_profile: bool, tiny_pack: Pack) -> None:
    network, architecture = Program.as_compiled(tiny_pack), ARCHITECTURES[name]
    known = profile(network) if has_profile else None
    for limit in (1 << 12, 1 << 18, 1 << 20):
        for wanted in (
            Wanted(total_bytes=limit),
            Wanted(weight_bytes=limit),
            Wanted(total_bytes=1 << 20, weight_bytes=limit),
            Wanted(total_bytes=limit, ring_bytes=limit >> 1),
        ):
            try:
                plan = fit(network, architecture, wanted, known).plan
            except PlanError as exc:
                assert re.search("bytes|profile", str(exc))  # noqa: PT017
                continue
            assert plan.total_bytes <= (wanted.total_bytes or plan.total_bytes)
            assert plan.weight_bytes <= (wanted.weight_bytes or plan.weight_bytes)


def test_nothing_is_smaller_than_the_least(tiny_pack: Pack) -> None:
    network = Program.as_compiled(tiny_pack)
    least = fit(network, AUTO, LEAST).plan.total_bytes
    assert fit(network, AUTO, Wanted(total_bytes=least)).plan.total_bytes == least
    with pytest.raises(PlanError, match=f"required .* available .*{least - 1} bytes.* excess 1 b"):
        fit(network, AUTO, Wanted(total_bytes=least - 1))
    assert fit(network, AUTO, NOTHING).plan.total_bytes > least


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
    least = fit(network, architecture, LEAST).plan.total_bytes
    for factor in (1, 1.01, 1.5):
        for thorough in (False, True):
            wanted = Wanted(total_bytes=round(factor * least), thorough=thorough)
            assert (
                least <= fit(network, architecture, wanted).plan.total_bytes <= factor * least + 1
            )
    assert fit(network, architecture).plan.total_bytes >= least


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
    known = profile(LAYERS, kernel, bytes_a_second)
    for limit in (6, 29):
        wanted = Wanted(total_bytes=limit << 16)
        assert fit(LAYERS, AUTO, wanted, known).plan.total_bytes <= limit << 16


@over("seconds", [math.nan, math.inf, -1.0, 1e300])
def test_what_is_no_time_is_in_no_profile(seconds: float) -> None:
    with pytest.raises(ValueError, match="max"):
        TypeAdapter(Distribution).validate_python(
            {"count": 1, "median": 0.0, "p95": 0.0, "max": seconds}
        )


def test_the_critical_path_leads_backwards_where_nothing_takes_time() -> None:
    known = profile(LAYERS, 0.0, math.inf)
    draft = Drafts(LAYERS, known.durations).draft(Choice(4 << 16, 1 << 16, 1 << 16))
    path = critical_reads(draft, draft.idle)
    assert path == sorted(set(path), reverse=True)


# Plans with lanes: never more than there is room for, as many as that allows, one where it is tight.


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
