"""What is there when the service begins costs collections of garbage nothing; what comes later may go."""

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from server.operation.process import pass_over_what_stays, take_short_turns


class Circle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # Python's own, which a service has
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    sys.setswitchinterval(interval)


def test_only_what_comes_later_is_looked_at() -> None:
    pass_over_what_stays()
    assert len(gc.get_objects()) < gc.get_freeze_count() // 100
    later = weakref.ref(Circle())
    gc.collect()
    assert later() is None


def test_what_comes_later_goes_without_being_asked() -> None:
    """However much is there: a full collection does not wait for a part of that to come again."""
    there = [[number] for number in range(60_000)]
    pass_over_what_stays()
    circles = [Circle() for _ in range(2_000)]
    for _ in range(2):  # the young are looked at twice before they are old
        gc.collect(1)
    gone = weakref.ref(circles[0])
    del circles
    for _ in range(150):
        assert [[number] for number in range(1_500)] < there
    assert gone() is None


def test_a_thread_gives_way_within_a_kernel() -> None:
    take_short_turns()
    assert sys.getswitchinterval() < 0.001
