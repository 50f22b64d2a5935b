"""Cuts that balance partitions, beside trying all."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from pipeline.fitting.partitioned import balanced, partition_seconds

SECONDS = st.lists(st.sampled_from([0.0, 1e-5, 1e-3, 2e-3, 5e-3]), min_size=1, max_size=9)


@given(SECONDS, st.integers(1, 4), st.data())
def test_no_cut_is_better(seconds: list[float], partitions: int, data: st.DataObject) -> None:
    """The slowest is within 2 % of the least there is; of those that are, the least crosses."""
    possible = range(1, len(seconds))
    places = sorted(data.draw(st.sets(st.sampled_from(possible)))) if possible else []
    crossing = [data.draw(st.integers(0, 5)) for _ in places]
    chosen = balanced(seconds, places, crossing, partitions)
    every = list(combinations(places, partitions - 1))
    if not every:
        assert chosen is None
        return
    assert chosen in every
    slowest = {cuts: max(partition_seconds(seconds, cuts)) for cuts in every}
    least = min(slowest.values())
    alike = [cuts for cuts, took in slowest.items() if took <= 1.02 * least + 1e-12]
    bytes_of = dict(zip(places, crossing, strict=True))
    assert chosen in alike
    assert sum(map(bytes_of.__getitem__, chosen)) <= min(
        sum(map(bytes_of.__getitem__, cuts)) for cuts in alike if slowest[cuts] <= 1.0199 * least
    )


def test_halves_of_even_pieces() -> None:
    assert balanced([1.0] * 8, range(1, 8), [1] * 7, 2) == (4,)
    assert balanced([1.0] * 9, range(1, 9), [1] * 8, 3) == (3, 6)
    assert balanced([1.0] * 8, [2, 5], [1, 1], 2) == (5,)
