"""What the mill decides without a server: the order of phases, its limit, its lines."""

import random
import socket
from functools import partial

import pytest

from benchmarks.mill import beside_calm
from benchmarks.mill.attacks import ATTACKS
from benchmarks.mill.crowd import Crowd, Siege, spread
from benchmarks.mill.deployed import beside_the_budget, memory_max
from benchmarks.mill.good import Book
from benchmarks.mill.play import CALM, MillResult, known, plan_phases
from benchmarks.mill.verdict import at_most, memory_bound
from benchmarks.servers.client import beside
from tests.examples import over


def test_a_round_plays_every_attack_alone_and_some_together() -> None:
    *alone, mixed = plan_phases(list(ATTACKS), random.Random(1))
    assert sorted(name for [name] in alone) == sorted(ATTACKS)
    assert 1 < len(set(mixed)) == len(mixed)


def test_rounds_of_one_seed_are_the_same() -> None:
    first, second = (plan_phases(list(ATTACKS), random.Random(7)) for _ in range(2))
    assert first == second


def test_attacks_are_chosen_by_name() -> None:
    assert known("idle,flood") == ["idle", "flood"]
    assert known("") == list(ATTACKS)
    with pytest.raises(ValueError, match="no attack called 'flod'"):
        known("idle,flod")


def test_memory_max_follows_the_unit() -> None:
    unit = "[Service]\nEnvironment=LAYERSTREAM_BUDGET=64MiB\nMemoryMax=200M\n"
    assert beside_the_budget(unit) == 136 << 20
    with pytest.raises(ValueError, match="does not set both"):
        beside_the_budget("[Service]\nMemoryMax=200M\n")
    assert memory_max(2 << 20) == memory_max(1 << 20) + (1 << 20) > 100 << 20


def test_a_figure_that_is_missing_does_not_hold() -> None:
    assert at_most("peak", 5, 5).holds
    assert not at_most("peak", 6, 5).holds
    assert not at_most("peak", None, 5).holds
    assert memory_bound(budget=100, base=60, pool=40) == 210


def test_calm_comes_before_each_attack() -> None:
    phases = plan_phases(["idle", "flood"], random.Random(1), beside_calm=True)
    assert phases[::2] == [[], []]
    assert sorted(phases[1::2]) == [["flood"], ["idle"]]


def played(calm: list[float], attacked: list[float], memory: int = 150) -> MillResult:
    """A run with the delays of ``ready`` in calm phases and in one with an attack, and peaks of memory."""
    found = MillResult(Book())
    for name, delays, peak in ((CALM, calm, 100), ("idle", attacked, memory)):
        found.book.pages[name]["ready"].delays += delays
        found.phases.append({"phase": name, "peak": {"total": peak, "anonymous": peak // 2}})
    return found


@over(
    "attacked, memory, held",
    [
        ([0.01] * 200, 150, {"p99": True, "memory": True}),
        ([0.01] * 100 + [0.5] * 100, 150, {"p99": False, "memory": True}),
        ([0.01] * 200, 201, {"p99": True, "memory": False}),
        ([0.01] * 20, 150, {"p99": False, "memory": True}),  # too few to say
    ],
)
def test_an_attack_is_compared_with_calm(
    attacked: list[float], memory: int, held: dict[str, bool]
) -> None:
    compared = beside_calm.compared(played([0.01] * 200, attacked, memory))
    lines = {line.name: line.holds for line in beside_calm.lines(compared)}
    assert lines == {f"{name}_beside_calm:idle": holds for name, holds in held.items()}


def test_a_crowd_opens_again_what_is_ended_and_counts_it() -> None:
    """A server that answers every request with 408 and hangs up."""
    answer = b"HTTP/1.1 408 Request Timeout\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        siege = Siege(Crowd(3, b"hello"), listener.getsockname()[1], spread(2))
        sources = set()
        with beside(partial(siege.play, 60.0)):
            for _ in range(5):
                client, (source, _) = listener.accept()
                sources.add(source)
                assert client.recv(5) == b"hello"
                client.sendall(answer)
                client.close()
    assert sources == set(spread(2))
    assert siege.seen["opened"] >= 5
    assert siege.seen["held"] <= 3
    assert siege.seen["408"] >= siege.seen["ended"] >= 2
