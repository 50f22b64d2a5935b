"""Threads that compute have a core each where there are exactly as many, and are left alone elsewhere."""

import subprocess
import sys

import pytest

from models.runtime.sessions import keep_apart, tasks


@pytest.fixture
def kept() -> dict[int, tuple[int, ...]]:
    return {}


def test_each_thread_has_a_core_and_one_is_left(kept: dict[int, tuple[int, ...]]) -> None:
    assert keep_apart({31, 12, 25}, 4, {7, 3, 5, 4}, kept.__setitem__) == (3,)
    assert kept == {12: (4,), 25: (5,), 31: (7,)}


@pytest.mark.parametrize(
    ("pool", "threads", "cores"),
    [
        ({1}, 2, {0, 1, 2}),  # a core to spare
        ({1, 2}, 3, {0, 1}),  # too few
        ({1, 2}, 2, {0, 1}),  # a thread that is not of the pool
        (set(), 2, {0, 1}),  # which threads there are is unknown
        (set(), 1, {0}),
    ],
)
def test_nothing_changes_where_the_system_has_a_choice(
    pool: set[int], threads: int, cores: set[int], kept: dict[int, tuple[int, ...]]
) -> None:
    assert keep_apart(pool, threads, cores, kept.__setitem__) == ()
    assert not kept


def test_a_system_that_refuses_is_done_without() -> None:
    def refuse(_thread: int, _cores: tuple[int, ...]) -> None:
        raise PermissionError

    assert keep_apart({1}, 2, {0, 1}, refuse) == ()


_PROCESS = """
import os
from models.runtime.sessions import claim_process, launching_cores, use_threads
{claim}
threads = use_threads()
alone = [t for t in os.listdir("/proc/self/task") if len(os.sched_getaffinity(int(t))) == 1]
cores = len(os.sched_getaffinity(0))
expected = cores - 1 if {claimed} and cores > 1 else 0
assert cores == 1 or len(alone) == expected, (alone, cores)
assert bool(launching_cores()) == (expected > 0)
"""


@pytest.mark.parametrize("claimed", [False, True])
def test_the_pool_of_a_process_that_is_ours_alone(claimed: bool) -> None:
    source = _PROCESS.format(claimed=claimed, claim="claim_process()" if claimed else "")
    subprocess.run([sys.executable, "-c", source], check=True, timeout=60)


def test_this_process_has_threads() -> None:
    assert tasks()
