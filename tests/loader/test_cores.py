"""Threads stay on a core where the system lets them; where it does not they compute anyway."""

import os

import pytest

from loader.cores import allowed_cores, pinned
from tests.loader.test_priority import on_a_thread


def test_a_thread_is_kept_on_a_core_and_let_go() -> None:
    before = allowed_cores()

    def kept() -> tuple[int, ...]:
        with pinned(before[:1]):
            inside = allowed_cores()
        assert allowed_cores() == before
        return inside

    assert on_a_thread(kept) == before[:1]


def test_a_core_that_is_refused_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a sandbox, or since it was taken away."""

    def refuse(_pid: int, _cores: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    entered = False
    with pinned(allowed_cores()[:1]):
        entered = True
    assert entered


def test_a_thread_with_one_core_stays_there() -> None:
    """A partition's, which computes beside others."""
    cores = allowed_cores()

    def kept() -> tuple[int, ...]:
        with pinned(cores[-1:]), pinned(cores[:1]):
            return allowed_cores()

    assert on_a_thread(kept) == cores[-1:]
