"""The memory of requests as figures: pools grow with budgets, and the smallest budget is one that works."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.budget.request_needs import (
    CODEC_BYTES,
    Need,
    capacity_for,
    pool_bytes,
    smallest_budget,
    smallest_budgets,
)
from server.memory.request_memory import RequestMemory
from tests.examples import examples

SIZES = st.integers(0, 1 << 36)
SOME = st.integers(CODEC_BYTES, 1 << 30)
NEED = st.builds(Need, SOME, st.one_of(st.just(0), SOME))
NEEDS = st.lists(NEED, max_size=4)


def fits(budget: int, model_bytes: int, needs: list[Need]) -> bool:
    """Whether models and requests have what they need in ``budget``."""
    return budget - pool_bytes(budget, needs, model_bytes) >= model_bytes


@given(SIZES, NEEDS)
@examples(few=50, many=20_000)
def test_the_smallest_budget_is_enough_and_hardly_less_is(
    model_bytes: int, needs: list[Need]
) -> None:
    smallest = smallest_budget(model_bytes, needs)
    assert fits(smallest, model_bytes, needs)
    assert not fits(smallest - 8, model_bytes, needs)


@given(SIZES, NEEDS)
@examples(few=35, many=20_000)
def test_the_budget_that_is_said_answers_tensors_too(model_bytes: int, needs: list[Need]) -> None:
    bare, full = smallest_budgets(model_bytes, needs)
    assert bare == smallest_budget(model_bytes, needs) <= full
    assert fits(full, model_bytes, needs)
    memory = RequestMemory(pool_bytes(full, needs, model_bytes))
    assert all(max(need.infer_bytes, need.picture_bytes) <= memory.room_bytes for need in needs)
    if full > bare:  # hardly less is not enough for all
        pool = pool_bytes(full - 8, needs, model_bytes)
        assert pool < max(need.full_bytes for need in needs)


@given(SIZES, SIZES, NEEDS)
@examples(few=35, many=20_000)
def test_a_larger_budget_gives_no_less_to_requests_or_to_models(
    one: int, other: int, needs: list[Need]
) -> None:
    less, more = sorted((one, other))
    assert pool_bytes(less, needs) <= pool_bytes(more, needs)
    assert less - pool_bytes(less, needs) <= more - pool_bytes(more, needs)


@given(SIZES, SIZES, SIZES, NEEDS)
@examples(few=35, many=20_000)
def test_models_that_would_not_fit_get_what_requests_can_do_without(
    one: int, other: int, model_bytes: int, needs: list[Need]
) -> None:
    less, more = sorted((one, other))
    pools = [pool_bytes(budget, needs, model_bytes) for budget in (less, more)]
    assert less - pools[0] <= more - pools[1]
    for budget, pool in zip((less, more), pools, strict=True):
        usual = pool_bytes(budget, needs)
        enough = min(2 * pool_bytes(0, needs), usual)
        assert enough <= pool <= usual
        assert (budget - pool >= model_bytes) == (budget - enough >= model_bytes)
        assert pool == usual or budget - pool == model_bytes


@given(SIZES, NEEDS, NEED)
@examples(few=35, many=20_000)
def test_a_pool_has_what_every_request_needs(budget: int, needs: list[Need], more: Need) -> None:
    pool = pool_bytes(budget, needs)
    memory = RequestMemory(pool)
    assert all(need.least_bytes <= memory.room_bytes for need in needs)
    assert memory.room_bytes >= CODEC_BYTES
    assert all(need.tight_bytes <= pool for need in needs)
    assert pool_bytes(budget, [*needs, more]) >= pool
    least = max((need.least_bytes for need in needs), default=CODEC_BYTES)
    tensors = capacity_for(max((need.infer_bytes for need in needs), default=0))
    assert pool <= max(budget // 8, capacity_for(least), min(tensors, budget // 4))
    assert pool >= min(tensors, budget // 8, 64 << 20)  # a share grows no further
    if budget >= 4 * tensors:
        assert pool >= tensors
