"""Reads numbered across passes: every order of starts, ends, failures and passes, next to a model."""

import copy
from collections.abc import Iterator

import pytest

from pipeline.execution.reads import Reads
from pipeline.schedule.schedule import ScheduleError

PASSES = 3


class Model:
    """What a plan with ``count`` reads a pass, and ``ahead`` for the next, has of reads by their number."""

    def __init__(self, count: int, ahead: int) -> None:
        self.count, self.ahead = count, ahead
        self.passes = 0
        self.reads = Reads(count, ahead)
        self.in_flight: frozenset[int] = frozenset()
        self.done: frozenset[int] = frozenset()
        self.failed: frozenset[int] = frozenset()

    @property
    def first(self) -> int:
        return (self.passes - 1) * self.count

    def state(self) -> object:
        reads = tuple(self.reads._states)
        return self.passes, self.in_flight, self.done, self.failed, reads

    def after_each(self) -> Iterator["Model"]:
        """Yield what can be next; what cannot is refused, and is no change."""
        for index in range(self.count + self.ahead):
            yield from self._started(index)
        for read in range(-1, self.first + self.count + self.ahead + 1):
            for failed in (False, True):
                yield from self._completed(read, failed)
        yield from self._next_pass()

    def _started(self, index: int) -> Iterator["Model"]:
        read = self.first + index
        if read in self.in_flight | self.done | self.failed:
            with pytest.raises(ScheduleError, match=f"read {read} "):
                self.reads.start(index)
            return
        # Those ahead are started in order.
        if index > self.count and read - 1 not in self.in_flight | self.done | self.failed:
            return
        after = copy.deepcopy(self)
        assert after.reads.start(index) == read
        after.in_flight |= {read}
        yield after

    def _completed(self, read: int, failed: bool) -> Iterator["Model"]:
        if read not in self.in_flight:
            with pytest.raises(ScheduleError, match=f"read {read} "):
                self.reads.end(read, failed=failed)
            return
        after = copy.deepcopy(self)
        index = after.reads.end(read, failed=failed)
        assert index == read - self.first
        assert after.reads.is_ahead(index) is (read >= self.first + self.count)
        after.in_flight -= {read}
        if failed:
            after.failed |= {read}
        else:
            after.done |= {read}
        yield after

    def _next_pass(self) -> Iterator["Model"]:
        first = self.first + self.count
        if any(read < first for read in self.in_flight):
            with pytest.raises(ScheduleError, match="in flight"):
                self.reads.begin()
            return
        if self.passes == PASSES:
            return
        states = {"in flight": self.in_flight, "done": self.done, "failed": self.failed}
        after = copy.deepcopy(self)
        started = after.reads.begin()
        for index, state in enumerate(started):
            assert first + index in states[state]
        assert first + len(started) not in self.in_flight | self.done | self.failed
        after.passes += 1
        after.done = frozenset(read for read in self.done if read >= first)
        after.failed = frozenset()  # those of the next pass wait again
        yield after


@pytest.mark.parametrize(
    ("count", "ahead"),
    [(1, 0), (1, 1), (2, 1), (2, 2), pytest.param(3, 3, marks=pytest.mark.slow)],
)
def test_transitions_in_every_order(count: int, ahead: int) -> None:
    start = Model(count, ahead)
    with pytest.raises(ScheduleError):
        start.reads.end(0, failed=False)
    (first,) = start._next_pass()
    visited = {first.state()}
    left = [first]
    while left:
        for after in left.pop().after_each():
            if after.state() not in visited:
                visited.add(after.state())
                left.append(after)
    assert len(visited) >= PASSES * 4**count
