"""Whether a pack computes what the model that it was compiled from computes."""

from typing import Literal

#: quick: all threads, in the smallest plan and with all weights in memory. full: one plan more, and all of
#: them with one thread, too.
Depth = Literal["quick", "full"]
