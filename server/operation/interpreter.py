"""Python in this process: nobody waits for it longer than must be."""

import contextlib
import gc
import sys
from importlib import import_module

#: A thread gives way so soon to one that waits for the interpreter; by itself it takes 5 ms, and a sweep
#: waits anew for each of its kernels.
_TURN_SECONDS = 0.0005
#: What libraries import when it is first used: by a search for places, and by answers that stream. 1.5 MiB.
IMPORTED_LATE = ("numpy.random", "anyio._backends._asyncio")


def take_short_turns() -> None:
    """Let no thread that plans, or reads a request, hold up those that compute by much."""
    sys.setswitchinterval(_TURN_SECONDS)


def pass_over_what_stays() -> None:
    """Have collections of garbage look at nothing that will always be there: libraries, schemas, the app.

    One that looks at all of it stops every thread for 60 ms. What comes afterwards is looked at: models
    that are loaded may go.
    """
    for name in IMPORTED_LATE:
        with contextlib.suppress(ImportError):  # another version has it elsewhere
            import_module(name)
    gc.collect()
    gc.freeze()
    # Python puts off a full collection until a quarter as much has come as the last one left: of what is
    # there now that would be 40,000 objects, 3.5 MiB of old plans.
    gc.collect()
