"""How much of its budget a service may use while the machine lacks memory; pure, on any clock.

Pressure is a smaller budget: its ceiling follows what the system says. Events say that there is too little
memory, not how little; headroom, the bytes that are free, says both. The end of pressure has no event: it
is over when nothing was seen for ``CALM_SECONDS``. Then the ceiling goes up again, by half of the
difference at a time, and never soon after it went up before: a neighbour that takes memory and gives it
back every few seconds would have models opened again all the time.
"""

import math
from dataclasses import dataclass

#: Pressure is over after so long without a sign of it; the ceiling is never raised twice within that.
CALM_SECONDS = 30.0
#: Where pressure comes so soon after a raise, the next one waits for twice as long as this one did,
_SOON_SECONDS = 60.0
#: and at most for so long.
_MAX_WAIT_SECONDS = 600.0
#: An event without figures lowers the ceiling by this part of what is used, and
_EVENT_DIVISOR = 8
#: by so much at least; a raise of less is not worth opening models again.
_MIN_CHANGE_BYTES = 1 << 20
#: After the ceiling was lowered, what models give back must show before the next event counts.
_MIN_INTERVAL_SECONDS = 1.0


@dataclass(frozen=True)
class Observation:
    """What was seen at ``now``, in seconds of one clock.

    ``event``: the system has reported since the last one that memory is scarce. ``lacking_bytes``:
    how much less is free than shall be, negative where more is; None: unknown. ``used_bytes``: what models
    and requests hold of the budget.
    """

    now: float
    event: bool
    lacking_bytes: int | None
    used_bytes: int


@dataclass(frozen=True)
class Ceiling:
    """What the ceiling shall be, and which signal lowers it; empty: it is raised."""

    n_bytes: int
    signal: str = ""


class Pressure:
    """Decides on the ceiling of a budget of ``total_bytes``."""

    def __init__(self, total_bytes: int) -> None:
        self._total_bytes = self.ceiling_bytes = total_bytes
        self._pressed_at = self._lowered_at = self._raised_at = -math.inf
        self._wait_seconds = CALM_SECONDS
        #: What is used at least, as the last relief has shown; None: unknown.
        self._floor_bytes: int | None = None

    def see(self, observation: Observation) -> Ceiling | None:
        """Return what the ceiling shall be from now on; None: it stays."""
        lacks = observation.lacking_bytes is not None and observation.lacking_bytes > 0
        if observation.event or lacks:
            self._pressed_at = observation.now
            return self._lowered(observation)
        return self._raised(observation)

    def relieved(self, used_bytes: int) -> None:
        """Note what is used after models have given back what they could: what they lack they keep."""
        self._floor_bytes = used_bytes if used_bytes > self.ceiling_bytes else None

    def is_pressed(self, now: float) -> bool:
        """Return whether there was a sign of pressure within ``CALM_SECONDS``."""
        return now - self._pressed_at < CALM_SECONDS

    def _lowered(self, observation: Observation) -> Ceiling | None:
        if self._floor_bytes is not None and observation.used_bytes <= self._floor_bytes:
            return None
        if observation.now - self._lowered_at < _MIN_INTERVAL_SECONDS:
            return None
        lacking = max(observation.lacking_bytes or 0, 0)
        signal = "event" if observation.event else "headroom"
        if observation.event:
            lacking = max(lacking, observation.used_bytes // _EVENT_DIVISOR, _MIN_CHANGE_BYTES)
        n_bytes = max(min(self.ceiling_bytes, observation.used_bytes - lacking), 0)
        if observation.now - self._raised_at < _SOON_SECONDS:
            self._wait_seconds = min(2 * self._wait_seconds, _MAX_WAIT_SECONDS)
            self._raised_at = -math.inf  # one shortage doubles it once
        self._lowered_at, self.ceiling_bytes = observation.now, n_bytes
        return Ceiling(n_bytes, signal)

    def _raised(self, observation: Observation) -> Ceiling | None:
        missing = self._total_bytes - self.ceiling_bytes
        last = max(self._lowered_at, self._raised_at)
        if (
            not missing
            or self.is_pressed(observation.now)
            or observation.now - last < self._wait_seconds
        ):
            return None
        more = -(-missing // 2) if missing > 2 * _MIN_CHANGE_BYTES else missing
        if observation.lacking_bytes is not None:
            more = min(more, -observation.lacking_bytes // 2)
        if more < min(_MIN_CHANGE_BYTES, missing):
            return None
        if self._raised_at > self._lowered_at:  # the last raise has held
            self._wait_seconds = CALM_SECONDS
        self._floor_bytes = None
        self._raised_at, self.ceiling_bytes = observation.now, self.ceiling_bytes + more
        return Ceiling(self.ceiling_bytes)
