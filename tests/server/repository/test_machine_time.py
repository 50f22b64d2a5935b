"""Each of several sweeps that run at once has its part of the time."""

from contextlib import ExitStack

import pytest

from server.repository.machine_time import MachineTime


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_alone_a_sweep_has_all_the_time() -> None:
    clock = Clock()
    machine = MachineTime(clock)
    for seconds in (2.0, 3.0):
        clock.now += 7.0  # idle
        with machine.part() as part:
            clock.now += seconds
        assert part.seconds == pytest.approx(seconds)


def test_while_two_run_each_has_half() -> None:
    clock = Clock()
    machine = MachineTime(clock)
    first, second = ExitStack(), ExitStack()
    mine = first.enter_context(machine.part())
    clock.now += 1.0
    theirs = second.enter_context(machine.part())
    clock.now += 4.0
    first.close()
    clock.now += 1.0
    second.close()
    assert mine.seconds == pytest.approx(1.0 + 2.0)
    assert theirs.seconds == pytest.approx(2.0 + 1.0)
    # All parts together are the time in which anything ran.
    assert mine.seconds + theirs.seconds == pytest.approx(6.0)


def test_a_sweep_that_fails_is_no_longer_counted() -> None:
    clock = Clock()
    machine = MachineTime(clock)
    with pytest.raises(ValueError, match="broken"), machine.part():
        raise ValueError("broken")
    with machine.part() as part:
        clock.now += 1.0
    assert part.seconds == pytest.approx(1.0)
