"""What a worker takes from its line: requests that wait for an answer, and changes of its engine."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Self, cast

from pipeline.execution.given import Take, Tensors
from pipeline.execution.lanes import Lane
from server.repository.served_engine import Answer, Running
from server.scheduling.sweeps import Sweep, Ticket


@dataclass(eq=False, kw_only=True)
class Job(Ticket):
    """``deadline`` is when the sweep has to have ended, ``limit`` when its answer has to be there."""

    inputs: Tensors
    limit: float
    take: Take[Any]
    cancelled: threading.Event = field(default_factory=threading.Event)
    future: "Future[Answer[Any]]" = field(default_factory=Future)

    @classmethod
    def within(
        cls, seconds: float, inputs: Tensors, take: Take[Any], priority: int, outside_seconds: float
    ) -> Self:
        """Return a request that came now; ``outside_seconds``: what an answer takes beside its sweep."""
        now = time.monotonic()
        limit = now + seconds
        return cls(
            model="",
            deadline=limit - outside_seconds,
            priority=priority,
            arrived=now,
            inputs=inputs,
            limit=limit,
            take=take,
        )

    def lane(self) -> Lane:
        """Return it as a lane of a sweep."""
        return Lane(self.inputs, self.limit, self.cancelled.is_set, self.take)


@dataclass(eq=False)
class Reopening:
    """Takes a turn as requests do; what ``make`` returns replaces the engine, else what ``back`` does."""

    make: Callable[[], Running]
    back: Callable[[], Running]
    future: "Future[None]" = field(default_factory=Future)


def jobs_of(sweep: Sweep) -> tuple[Job, ...]:
    """Return the requests of ``sweep``."""
    return cast(tuple[Job, ...], sweep.tickets)


def refuse(waiting: Job | Reopening, error: Exception) -> None:
    """Tell who waits for it that there will be nothing."""
    if waiting.future.set_running_or_notify_cancel():
        waiting.future.set_exception(error)
