"""What planners remember from one question to the next, and how to let go of it.

While a model is planned the same is asked hundreds of times. When that is over, the plan is all that is
needed. Variants on rows are few numbers, and stay.
"""

import gc

from models.packs.choice import forget_choices
from models.runtime.heap import trim_heap
from pipeline.planning.arena import plan_arena
from pipeline.program.steps import forget_networks


def forget() -> None:
    """Let go of it, and give its memory back; who plans at the same time takes a little longer.

    Much of what is planned refers to itself in circles.
    """
    plan_arena.cache_clear()
    forget_choices()
    forget_networks()
    gc.collect()
    trim_heap()
