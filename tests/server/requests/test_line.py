"""The line before an engine, against a plain model of it."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import BusyError, NotServingError
from server.requests.admission import Line


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.sampled_from(["join", "leave", "take"]), st.integers(0, 9))),
)
def test_jobs_come_out_in_order_and_never_more_than_the_limit(
    limit: int, steps: list[tuple[str, int]]
) -> None:
    line: Line[int] = Line("m", limit)
    model: list[int] = []
    for what, job in steps:
        if what == "join":
            if len(model) < limit:
                line.join(job)
                model.append(job)
            else:
                with pytest.raises(BusyError, match=f"{limit} requests"):
                    line.join(job)
        elif what == "leave":
            line.leave(job)
            if job in model:
                model.remove(job)
        elif model:
            assert line.take() == model.pop(0)
        assert len(line) == len(model)


def test_a_closed_line_gives_what_it_holds_and_then_none() -> None:
    line: Line[int] = Line("m", 4)
    line.join(1)
    line.close()
    with pytest.raises(NotServingError, match="'m' is leaving"):
        line.join(2)
    assert [line.take(), line.take()] == [1, None]


def test_what_joins_first_passes_all_others_also_where_the_line_is_full() -> None:
    line: Line[int] = Line("m", 2)
    line.join(1)
    line.join(2)
    line.join_first(3)
    with pytest.raises(BusyError):
        line.join(4)
    assert [line.take(), line.take(), line.take()] == [3, 1, 2]
    line.close()
    with pytest.raises(NotServingError):
        line.join_first(5)


@pytest.mark.parametrize("wake", ["join", "close"])
def test_a_taker_that_waits_is_woken(wake: str) -> None:
    line: Line[int] = Line("m", 1)
    taken: list[int | None] = []
    thread = threading.Thread(target=lambda: taken.append(line.take()))
    thread.start()
    if wake == "join":
        line.join(7)
    else:
        line.close()
    thread.join()
    assert taken == [7 if wake == "join" else None]
