"""A long search runs in a process of its own, says how far it is, and ends when it is not wanted."""

import os
import signal
import threading
from types import SimpleNamespace

import pytest

from pipeline.budget import search
from pipeline.planning.plan import PlanError
from pipeline.program.stopping import PlanningStoppedError, go_on, stopping_when, tell, telling
from server.repository.apart import APART_BYTES, SearchApart


def where(sizes: list[int]) -> tuple[int, int]:
    """A search: its process, and what it found."""
    for number, _ in enumerate(sizes):
        tell("sizes", number, len(sizes))
    go_on()
    return os.getpid(), max(sizes)


def refuse(words: str) -> None:
    go_on()
    raise PlanError(words)


def wait() -> None:
    go_on()
    signal.pause()


def die() -> None:
    go_on()
    os.kill(os.getpid(), signal.SIGKILL)


def plenty() -> int:
    return APART_BYTES


def never() -> bool:
    return False


@pytest.fixture
def nothing_is_brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "BRIEF_SECONDS", 0.0)


def test_what_is_brief_stays_here() -> None:
    assert SearchApart(plenty, never).fully(where, [1, 3]) == (os.getpid(), 3)


def test_brief_is_longer_while_nothing_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    monkeypatch.setattr(search, "time", SimpleNamespace(thread_time=lambda: seconds[0]))

    def compute() -> int:
        seconds[0] += 0.5
        go_on()
        return 3

    assert SearchApart(plenty, lambda: True).briefly(compute) == 3
    assert SearchApart(plenty, never).briefly(compute) is None


@pytest.mark.usefixtures("nothing_is_brief")
def test_what_takes_long_runs_elsewhere_and_says_how_far_it_is() -> None:
    told: list[tuple[str, int, int]] = []
    with telling(lambda *said: told.append(said)):
        process, found = SearchApart(plenty, never).fully(where, [1, 3])
    assert process != os.getpid()
    assert found == 3
    assert told[-2:] == [("sizes", 0, 2), ("sizes", 1, 2)]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_brief")
def test_its_errors_are_those_of_the_search() -> None:
    with pytest.raises(PlanError, match="too few bytes"):
        SearchApart(plenty, never).fully(refuse, "too few bytes")


@pytest.mark.usefixtures("nothing_is_brief")
def test_a_process_that_is_killed_is_an_error() -> None:
    with pytest.raises(PlanError, match="without a word"):
        SearchApart(plenty, never).fully(die)


@pytest.mark.usefixtures("nothing_is_brief")
def test_it_ends_when_it_is_not_wanted_any_more() -> None:
    unwanted = threading.Event()
    timer = threading.Timer(0.05, unwanted.set)
    timer.start()
    with stopping_when(unwanted.is_set), pytest.raises(PlanningStoppedError):
        SearchApart(plenty, never).fully(wait)
    timer.join()


@pytest.mark.usefixtures("nothing_is_brief")
def test_without_room_for_a_process_it_stays_here() -> None:
    search = SearchApart(lambda: APART_BYTES - 1, never)
    assert search.fully(where, [1, 3]) == search.now(where, [1, 3]) == (os.getpid(), 3)
