"""Whether a pack computes what the model that it was compiled from computes."""

import os
from typing import Literal

#: quick: all threads, in the smallest plan and with all weights in memory. full: one plan more, and all of
#: them with one thread, too.
Depth = Literal["quick", "full"]


def threads_of(depth: Depth) -> tuple[int | None, ...]:
    """Return with how many threads a pack runs, one after the other; None: with all that there are."""
    return (None, 1) if depth == "full" and len(os.sched_getaffinity(0)) > 1 else (None,)
