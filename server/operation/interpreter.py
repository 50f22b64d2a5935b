"""Python in this process: nobody waits for it longer than must be."""

import gc
import sys

#: A thread gives way so soon to one that waits for the interpreter; by itself it takes 5 ms, and a sweep
#: waits anew for each of its kernels.
_TURN_SECONDS = 0.0005


def take_short_turns() -> None:
    """Let no thread that plans, or reads a request, hold up those that compute by much."""
    sys.setswitchinterval(_TURN_SECONDS)


def pass_over_what_stays() -> None:
    """Have collections of garbage look at nothing that there is now: libraries, schemas, the application.

    One that looks at all of it stops every thread for 60 ms. What comes afterwards is looked at: models
    that are loaded may go.
    """
    gc.collect()
    gc.freeze()
