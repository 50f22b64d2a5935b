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
_PART = 8
#: by so much at least; a raise of less is not worth opening models again.
_WORTH_BYTES = 1 << 20
#: After the ceiling was lowered, what models give back must show before the next event counts.
_SETTLE_SECONDS = 1.0


@dataclass(frozen=True)
class Look:
    """What was seen at ``now``, in seconds of one clock.

    ``event``: the system has said since the last look that there is too little memory. ``lacking_bytes``:
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

    def see(self, look: Look) -> Ceiling | None:
        """Return what the ceiling shall be from now on; None: it stays."""
        lacks = look.lacking_bytes is not None and look.lacking_bytes > 0
        if look.event or lacks:
            self._pressed_at = look.now
            return self._lowered(look)
        return self._raised(look)

    def relieved(self, used_bytes: int) -> None:
        """Note what is used after models have given back what they could: more is not asked in vain."""
        self._floor_bytes = used_bytes if used_bytes > self.ceiling_bytes else None

    def is_pressed(self, now: float) -> bool:
        """Return whether there was a sign of pressure within ``CALM_SECONDS``."""
        return now - self._pressed_at < CALM_SECONDS

    def _lowered(self, look: Look) -> Ceiling | None:
        if self._floor_bytes is not None and look.used_bytes <= self._floor_bytes:
            return None
        if look.now - self._lowered_at < _SETTLE_SECONDS:
            return None
        lacking = max(look.lacking_bytes or 0, 0)
        signal = "event" if look.event else "headroom"
        if look.event:
            lacking = max(lacking, look.used_bytes // _PART, _WORTH_BYTES)
        n_bytes = max(min(self.ceiling_bytes, look.used_bytes - lacking), 0)
        if look.now - self._raised_at < _SOON_SECONDS:
            self._wait_seconds = min(2 * self._wait_seconds, _MAX_WAIT_SECONDS)
            self._raised_at = -math.inf  # one shortage doubles it once
        self._lowered_at, self.ceiling_bytes = look.now, n_bytes
        return Ceiling(n_bytes, signal)

    def _raised(self, look: Look) -> Ceiling | None:
        missing = self._total_bytes - self.ceiling_bytes
        last = max(self._lowered_at, self._raised_at)
        if not missing or self.is_pressed(look.now) or look.now - last < self._wait_seconds:
            return None
        more = -(-missing // 2) if missing > 2 * _WORTH_BYTES else missing
        if look.lacking_bytes is not None:
            more = min(more, -look.lacking_bytes // 2)
        if more < min(_WORTH_BYTES, missing):
            return None
        if self._raised_at > self._lowered_at:  # the last raise has held
            self._wait_seconds = CALM_SECONDS
        self._floor_bytes = None
        self._raised_at, self.ceiling_bytes = look.now, self.ceiling_bytes + more
        return Ceiling(self.ceiling_bytes)
