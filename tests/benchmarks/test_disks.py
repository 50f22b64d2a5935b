"""What no plan can beat on a disk, by the order of kernels and weights."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planning.disks import least_seconds

KERNELS = st.lists(st.tuples(st.floats(0, 9), st.integers(0, 99)), min_size=1, max_size=12)


def greedy(kernels: list[tuple[float, int]], memory: int, speed: float) -> float:
    """Seconds of a sweep that reads byte by byte into a ring, full at first, wherever one is free."""
    time, begun, held = 0.0, 0.0, float(memory)  # held: bytes read, or that may be, since the start
    needed = 0
    for seconds, n_bytes in kernels:
        needed += n_bytes
        # Bytes are freed as the kernel runs, so what it lacks is read beside itself.
        lacks = max(needed - held, 0) / speed
        begun, time = time, max(time + seconds, time + lacks)
        held = min(held + (time - begun) * speed, needed + memory)
    return time


def test_is_the_kernels_where_all_fits_and_the_bytes_where_nothing_else_takes_time() -> None:
    assert least_seconds([1.0, 2.0], [5, 5], 10, 1.0) == 3.0
    assert least_seconds([0.0, 0.0], [50, 60], 10, 10.0) == pytest.approx(10.0)


def test_counts_what_must_wait_behind_slow_kernels() -> None:
    # The disk rests beside the first kernel: its memory is full.
    assert least_seconds([5.0, 0.0], [0, 100], 20, 10.0) == pytest.approx(5.0 + 8.0)


@given(KERNELS, st.integers(1, 200), st.integers(1, 50))
def test_no_sweep_is_faster(kernels: list[tuple[float, int]], memory: int, speed: int) -> None:
    seconds, n_bytes = zip(*kernels, strict=True)
    least = least_seconds(seconds, n_bytes, memory, speed)
    assert least <= greedy(kernels, memory, speed) + 1e-6
    assert least >= sum(seconds)
    assert least >= (sum(n_bytes) - memory) / speed - 1e-6


@given(KERNELS, st.integers(1, 200), st.integers(1, 50))
def test_falls_with_memory_and_speed(
    kernels: list[tuple[float, int]], memory: int, speed: int
) -> None:
    seconds, n_bytes = zip(*kernels, strict=True)
    least = least_seconds(seconds, n_bytes, memory, speed)
    assert least_seconds(seconds, n_bytes, memory + 1, speed) <= least
    assert least_seconds(seconds, n_bytes, memory, speed + 1) <= least
