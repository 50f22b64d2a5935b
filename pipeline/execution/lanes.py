"""Several requests in one sweep: each step runs for every lane before its weights are released.

Invariant: what happens to one lane, its end before time or its failure, changes nothing for the others:
lanes have inputs, arenas and bindings of their own, and share nothing but weights and scratch.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pipeline.devices.base import DeviceLostError, Launch
from pipeline.execution.errors import CancelledError, DeadlineError
from pipeline.execution.given import Take, Tensors, copies


class Lane(NamedTuple):
    """One request of a sweep.

    ``inputs``: graph inputs by name, with exactly their dtypes and shapes; all that have no default.
    Nothing holds them when ``take`` is called with the outputs by name, views that are gone when it
    returns. ``deadline``: on time.monotonic's clock. ``cancelled`` is asked between kernels.
    """

    inputs: Tensors
    deadline: float | None = None
    cancelled: Callable[[], bool] = lambda: False
    take: Take[Any] = copies


class LaneRun:
    """The ``lanes`` of one sweep: which of them still run, and why the others stopped."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        #: Lanes that have not stopped, by position.
        self.running: tuple[int, ...] = tuple(range(len(lanes)))
        self.errors: dict[int, Exception] = {}
        #: When the sweep is of use to nobody any more; None: it always is to one.
        self.deadline = _last(lanes)

    def all_stopped(self) -> bool:
        """Return whether nobody waits for the sweep; looks at each lane's cancellation."""
        for lane in self.running:
            if self._lanes[lane].cancelled():
                self.stop(lane, CancelledError("cancelled"))
        return not self.running

    def stop(self, lane: int, error: Exception) -> None:
        """Take a lane out of the sweep."""
        self.running = tuple(each for each in self.running if each != lane)
        self.errors[lane] = error

    def each(self, act: Callable[[int], None]) -> None:
        """Do ``act`` for each lane that runs; one that fails stops alone.

        Raises:
            DeviceLostError: no lane can go on.
        """
        for lane in self.running:
            try:
                act(lane)
            except DeviceLostError:
                raise
            except Exception as exc:  # noqa: BLE001  whatever it is, the others have no part in it
                self.stop(lane, exc)

    def step(self, launches: Sequence[Launch]) -> None:
        """Run one step: ``launches[lane]`` for each lane that is neither cancelled nor late."""

        def launch(lane: int) -> None:
            self._check(lane)
            launches[lane]()

        self.each(launch)

    def _check(self, lane: int) -> None:
        held = self._lanes[lane]
        if held.cancelled():
            raise CancelledError("cancelled")
        if held.deadline is not None and time.monotonic() > held.deadline:
            raise DeadlineError("the deadline passed")


def _last(lanes: Sequence[Lane]) -> float | None:
    """Return the last deadline of ``lanes``; None where one of them has none."""
    last: float | None = None
    for lane in lanes:
        if lane.deadline is None:
            return None
        last = lane.deadline if last is None else max(last, lane.deadline)
    return last
