"""Variants take turns, work goes on beside a block, and a verdict ends the program."""

import contextlib
import json
import threading
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.servers.client import beside
from benchmarks.turns import end, in_turns


@given(st.integers(1, 5), st.integers(0, 6), st.integers(0, 3))
def test_each_plays_once_a_round_and_each_begins_as_often(
    players: int, rounds: int, warm_up: int
) -> None:
    order: list[int] = []

    def play(number: int) -> int:
        order.append(number)
        return len(order)

    found = in_turns({str(n): partial(play, n) for n in range(players)}, rounds, warm_up)
    played = [order[at : at + players] for at in range(0, len(order), players)]
    assert [sorted(each) for each in played] == [list(range(players))] * (warm_up + rounds)
    begun = [sum(each[0] == n for each in played) for n in range(players)]
    assert max(begun) - min(begun) <= 1
    # What the warm-up gave is left out.
    kept = sorted(number for numbers in found.values() for number in numbers)
    assert kept == list(range(warm_up * players + 1, len(order) + 1))


def test_work_goes_on_until_the_block_ends_however_it_ends() -> None:
    began, ended = threading.Event(), threading.Event()

    def work(over: threading.Event) -> None:
        began.set()
        over.wait()
        ended.set()

    with contextlib.suppress(LookupError), beside(work):
        assert began.wait(10)
        assert not ended.is_set()
        raise LookupError
    assert ended.is_set()


@pytest.mark.parametrize(("holds", "status"), [(True, 0), (False, 1)])
def test_a_verdict_is_the_exit_status(
    holds: bool, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        end({"ratio": 0.5}, holds)
    assert (ended.value.code, json.loads(capsys.readouterr().out)) == (status, {"ratio": 0.5})
    with pytest.raises(SystemExit):
        end({"ratio": 0.5}, lines=["a line", "and another"])
    assert capsys.readouterr().out == "a line\nand another\n"
