"""Free pages of the heap go back where the process holds more than the budget explains."""

from pathlib import Path

import pytest

from server.memory.budget import Budget
from server.memory.trimming import Trimming, anonymous_bytes

BASE, MIB = 60 << 20, 1 << 20


class Heap:
    """A process of ``used`` bytes beside what is ``free`` in its heap, which trimming gives back."""

    def __init__(self) -> None:
        self.used, self.free, self.trims = BASE, 0, 0

    def held(self) -> int:
        return self.used + self.free

    def trim(self) -> None:
        self.free = 0
        self.trims += 1


@pytest.fixture
def heap() -> Heap:
    return Heap()


@pytest.fixture
def trimming(heap: Heap) -> Trimming:
    return Trimming(Budget(6 * MIB), lambda: BASE, heap.held, heap.trim)


def test_what_the_budget_has_stays(heap: Heap, trimming: Trimming) -> None:
    heap.free = 6 * MIB
    trimming.look()
    assert heap.free == 6 * MIB
    heap.free += 1
    trimming.look()
    assert heap.free == 0


def test_what_is_in_use_is_not_trimmed_again_and_again(heap: Heap, trimming: Trimming) -> None:
    heap.used += 7 * MIB
    for _ in range(10):
        heap.free += MIB // 2
        trimming.look()
    assert heap.trims == 4
    assert heap.free <= MIB


def test_after_less_was_held_growth_counts_from_there(heap: Heap, trimming: Trimming) -> None:
    heap.used += 20 * MIB
    trimming.look()
    heap.used = BASE
    trimming.look()
    heap.free = 7 * MIB
    trimming.look()
    assert (heap.trims, heap.free) == (2, 0)


def test_what_the_system_does_not_say_is_nothing(tmp_path: Path) -> None:
    assert anonymous_bytes(tmp_path / "missing") == 0
    assert anonymous_bytes() > 0
