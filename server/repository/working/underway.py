"""What a worker computes now, as others see it: since when, and whether it will ever end.

Threads begin and end runs, the event loop looks: every look is at a copy.
"""

import time
from collections.abc import Callable

from pipeline.execution.interleaving.baton import ComputeClaim
from server.repository.working.jobs import jobs_of
from server.scheduling.sweeps import Sweep


class Underway:
    """Runs that have begun and not ended: sweeps of the line, and what the event loop computes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: dict[object, float] = {}
        self._claims: dict[object, ComputeClaim] = {}

    def begin(self, run: object, claim: ComputeClaim | None = None) -> float:
        """Note that ``run`` begins, with its ``claim`` to compute; return when."""
        if claim is not None:
            self._claims[run] = claim
        began = self._since[run] = self._clock()
        return began

    def end(self, run: object) -> None:
        """Note that ``run`` has ended."""
        del self._since[run]
        self._claims.pop(run, None)

    def end_claims(self) -> None:
        """Let nobody wait for the runs that do not end."""
        for claim in list(self._claims.values()):
            claim.end()

    def longest_seconds(self) -> float:
        """How long the oldest has been running; 0 when none runs."""
        since = min(self._since.copy().values(), default=None)
        return 0.0 if since is None else self._clock() - since

    def is_stuck(self, factor: float, least_seconds: float) -> bool:
        """Return whether a sweep runs ``factor`` times as long as its requests had.

        ``least_seconds``: and at least so long.
        """
        now = self._clock()
        return any(
            now - began > max(factor * (_limit(sweep) - began), least_seconds)
            for sweep, began in self._since.copy().items()
            if isinstance(sweep, Sweep)
        )


def _limit(sweep: Sweep) -> float:
    """Return when the last of the requests of ``sweep`` has to have its answer."""
    return max(job.limit for job in jobs_of(sweep))
