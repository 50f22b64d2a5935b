"""Waiting until a process computes nothing.

Thread pools spin for a while after a run, in case another follows. Whoever is measured next would pay for
it, so nobody's turn begins before the others sleep; nobody's defaults are changed for that.
"""

import time

_LOOK_SECONDS = 0.005
_BUSY_SHARE = 0.1


def wait_until_quiet(most_seconds: float = 2.0) -> None:
    """Return once this process uses less than a tenth of a core, or after ``most_seconds``."""
    give_up = time.monotonic() + most_seconds
    busy = 1.0
    while busy > _BUSY_SHARE and time.monotonic() < give_up:
        wall, used = time.perf_counter(), time.process_time()
        time.sleep(_LOOK_SECONDS)
        busy = (time.process_time() - used) / (time.perf_counter() - wall)
