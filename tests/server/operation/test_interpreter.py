"""What is there when the service begins costs collections of garbage nothing; what comes later may go."""

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from server.operation.interpreter import pass_over_what_stays, take_short_turns


class Circle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    interval = sys.getswitchinterval()
    yield
    gc.unfreeze()
    sys.setswitchinterval(interval)


def test_only_what_comes_later_is_looked_at() -> None:
    pass_over_what_stays()
    assert len(gc.get_objects()) < gc.get_freeze_count() // 100
    later = weakref.ref(Circle())
    gc.collect()
    assert later() is None


def test_a_thread_gives_way_within_a_kernel() -> None:
    take_short_turns()
    assert sys.getswitchinterval() < 0.001
