"""Where a sweep's time goes, of sweeps whose times are known."""

import pytest

from pipeline.benchmark.account import Traced, account, estimated_pass
from pipeline.fitting.fit import fit
from pipeline.fitting.predicting import Predictions
from pipeline.fitting.wanted import LEAST, NOTHING, Wanted
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from tests.pipeline.made_profiles import profile
from tests.pipeline.small import maps_program


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return maps_program(tmp_path_factory.mktemp("account"))


@pytest.mark.parametrize("wanted", [LEAST, Wanted(weight_bytes=400_000)])
def test_a_sweep_as_predicted_is_accounted_for_to_the_last_part(
    program: Program, wanted: Wanted
) -> None:
    known = profile(program, bytes_a_second=1e8)
    plan = fit(program, ARCHITECTURES["auto"], wanted, known).plan
    pre = fit(program, ARCHITECTURES["pre"], NOTHING, known).plan
    estimates = Predictions(program, known).estimates
    traced, whole = (Traced(each, [estimated_pass(each, estimates)]) for each in (plan, pre))
    shares = account(traced, whole, estimates)
    assert [piece for share in shares for piece in share.pieces] == [*program.own]
    for share in shares:
        assert share.kernel_ms == pytest.approx(share.predicted_ms)
    expected = estimates.sweep(plan)
    kernels, waits = (
        sum(getattr(share, key) for share in shares) for key in ("kernel_ms", "waited_ms")
    )
    assert waits == pytest.approx(1e3 * expected.stall_seconds)
    assert kernels + waits == pytest.approx(1e3 * expected.delay_seconds)
    assert sum(share.pre_ms for share in shares) == pytest.approx(1e3 * estimates.seconds(pre))
    assert sum(share.launches for share in shares) == plan.launches
