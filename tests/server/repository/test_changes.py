"""Looks at a repository: what counts as come and gone, however the looks fall."""

from hypothesis import given
from hypothesis import strategies as st

from server.repository.on_disk import Seen
from server.repository.polling import Changes, Changing


def seen(state: int) -> Seen:
    return (("weights.bin", 1, state, 10, 100),)


STATES = st.dictionaries(st.sampled_from("abc"), st.integers(0, 3))


@given(first=STATES, looks=st.lists(STATES, max_size=12))
def test_what_stays_is_settled_once_and_what_moves_never(
    first: dict[str, int], looks: list[dict[str, int]]
) -> None:
    changing = Changing({name: seen(state) for name, state in first.items()})
    settled, before = dict(first), first
    for now in looks:
        changes = changing.look({name: seen(state) for name, state in now.items()})
        for name in changes.come:
            assert now[name] == before[name]
            assert settled.get(name) != now[name]
            settled[name] = now[name]
        for name in changes.gone:
            assert name not in now
            assert name not in before
            del settled[name]
        before = now
    # What does not move any more is settled by two looks, and a third finds nothing.
    last = {name: seen(state) for name, state in before.items()}
    for _ in range(2):
        changes = changing.look(last)
        settled |= {name: before[name] for name in changes.come}
        settled = {name: state for name, state in settled.items() if name not in changes.gone}
    assert settled == before
    assert changing.look(last) == Changes()
