"""Threads stay on a core where the system lets them; where it does not they compute anyway."""

import ctypes
import os
import platform
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from loader import cores
from loader.cores import LEVELS, allowed_cores, hasten, pinned, reader_priority, spread, wake_soon


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


# Threads that read run soon after they wake, as far as the kernel allows.


T = TypeVar("T")


def on_a_thread(function: Callable[[], T]) -> T:
    """Run ``function`` on a thread that ends: what it changes of itself ends with it."""
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def nice_level() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_only_the_thread_itself_is_changed() -> None:
    before = nice_level()
    reached, after = on_a_thread(lambda: (hasten(), nice_level()))
    assert after == (max(before - LEVELS, -20) if reached == "nice" else before)
    assert nice_level() == before


@pytest.mark.parametrize(("allowed", "expected"), [(-20, "nice"), (0, "slice"), (20, "usual")])
def test_what_is_not_allowed_is_left(
    allowed: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses nice levels below ``allowed``."""
    tried: list[int] = []

    def schedule(nice: int) -> bool:
        tried.append(nice)
        return nice >= allowed

    monkeypatch.setattr(cores, "_schedule", schedule)
    monkeypatch.setattr(os, "getpriority", lambda *_: 0)
    assert hasten() == expected
    assert tried == [-LEVELS, 0][: 1 if expected == "nice" else 2]


def slice_ns() -> int:
    """The slice of the calling thread as the kernel reports it; 0 where it reports none."""
    found = cores._Attributes()
    number = {"x86_64": 315, "aarch64": 275}.get(platform.machine(), -1)
    size = ctypes.sizeof(found)
    ctypes.CDLL(None).syscall(number, 0, ctypes.byref(found), size, 0)
    return int(found.runtime)


def test_a_thread_that_wakes_soon_starts_usual_ones() -> None:
    def found() -> tuple[bool, int, int]:
        return wake_soon(), slice_ns(), on_a_thread(slice_ns)

    before, usual = nice_level(), on_a_thread(slice_ns)
    is_allowed, own, of_started = on_a_thread(found)
    assert own < usual or not (is_allowed and usual)
    assert of_started == usual
    assert nice_level() == before


def test_a_machine_without_the_call_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    assert on_a_thread(hasten) == "usual"


def test_what_readers_reach_is_asked_once() -> None:
    before = threading.active_count()
    assert reader_priority() == reader_priority() == on_a_thread(hasten)
    assert threading.active_count() == before


def test_a_thread_stays_where_it_is_if_it_may_not_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sandbox, or where cores were taken away: a reader that ended would strand all models."""

    def refuse(_pid: int, _cores: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    spread({0})
