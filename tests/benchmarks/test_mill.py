"""What the mill decides without a server: the order of phases, its limit, its lines."""

import random

import pytest

from benchmarks.mill.attacks import ATTACKS
from benchmarks.mill.deployed import beside_the_budget, memory_max
from benchmarks.mill.play import known, plan_phases
from benchmarks.mill.verdict import at_most, memory_bound


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
