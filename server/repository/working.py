"""The work of a worker: requests and changes of its engine, and sweeps that run now."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, cast

from pipeline.execution.baton import ComputeClaim
from pipeline.execution.given import Take, Tensors
from pipeline.execution.lane import Lane
from server.repository.served_engine import ComputedAnswer
from server.scheduling.sweeps import Sweep, Ticket, level


@dataclass(eq=False, kw_only=True)
class Job(Ticket):
    """A request in line. ``deadline``: by when its sweep has to end; ``limit``: by when its answer is due.

    ``future``: of the event loop; it ends with what comes first: the answer, which a thread tells, the
    limit, or the client's leaving.
    """

    inputs: Tensors
    limit: float
    take: Take[Any]
    future: "asyncio.Future[ComputedAnswer[Any]]"

    @classmethod
    def within(
        cls, seconds: float, inputs: Tensors, take: Take[Any], priority: int, deadline: float
    ) -> Self:
        """Return a request that came now, and has so many ``seconds``.

        ``priority``: as clients number it. ``deadline``: as Costs.deadline.
        """
        now = time.monotonic()
        return cls(
            model="",
            deadline=deadline,
            priority=level(priority),
            arrived=now,
            inputs=inputs,
            limit=now + seconds,
            take=take,
            future=asyncio.get_running_loop().create_future(),
        )

    def lane(self) -> Lane:
        """Return the request as a lane of a sweep."""
        return Lane(self.inputs, self.limit, self.future.done, self.take)


@dataclass(eq=False)
class EngineChange:
    """A change in line: ``work`` is done on a thread while no request to the model runs."""

    work: Callable[[], Any]
    future: "asyncio.Future[Any]"


def jobs_of(sweep: Sweep) -> tuple[Job, ...]:
    """Return the requests of ``sweep``."""
    return cast(tuple[Job, ...], sweep.tickets)


class Underway:
    """Sweeps of the line that have begun and not ended.

    Threads begin and end them, the event loop looks: every look is at a copy.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: dict[Sweep, tuple[float, ComputeClaim]] = {}

    def begin(self, sweep: Sweep, claim: ComputeClaim) -> float:
        """Note that ``sweep`` begins, with its ``claim`` to compute; return when."""
        now = self._clock()
        self._began[sweep] = now, claim
        return now

    def end(self, sweep: Sweep) -> None:
        """Note that ``sweep`` has ended."""
        del self._began[sweep]

    def end_claims(self) -> None:
        """Let nothing wait for the sweeps that do not end."""
        for _, claim in list(self._began.values()):
            claim.end()

    def longest_seconds(self) -> float:
        """How long the oldest has been running; 0 when none runs."""
        since = min((began for began, _ in list(self._began.values())), default=None)
        return 0.0 if since is None else self._clock() - since

    def is_stuck(self, factor: float, least_seconds: float) -> bool:
        """Return whether a sweep runs ``factor`` times the time of its requests, and ``least_seconds``."""
        now = self._clock()
        return any(
            now - began > max(factor * (_limit(sweep) - began), least_seconds)
            for sweep, (began, _) in list(self._began.items())
        )


def _limit(sweep: Sweep) -> float:
    """Return when the last of the requests of ``sweep`` has to have its answer."""
    return max(job.limit for job in jobs_of(sweep))
