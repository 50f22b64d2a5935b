"""Places in the inner memory of a piece: parts share bytes when they do not share launches."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.devices.cuda.call import Argument, Call, Pointer
from pipeline.planning.arena import plan_arena
from pipeline.program.lives import Lifetime


def place(calls: Sequence[Call], sizes: Sequence[int]) -> tuple[tuple[Call, ...], int]:
    """Return ``calls`` with places in one block of inner memory, and how many bytes it has.

    Args:
        calls: their inner pointers have the index of a part.
        sizes: bytes of each part.
    """
    start = [len(calls)] * len(sizes)
    end = [0] * len(sizes)
    for step, call in enumerate(calls):
        for argument in call.arguments:
            if isinstance(argument, Pointer) and argument.space == "inner":
                start[argument.index] = min(start[argument.index], step)
                end[argument.index] = step + 1
    lives = tuple(
        Lifetime(size if first < last else 0, min(first, last), last)
        for size, first, last in zip(sizes, start, end, strict=True)
    )
    plan = plan_arena(lives)

    def placed(argument: Argument) -> Argument:
        if isinstance(argument, Pointer) and argument.space == "inner":
            return Pointer("inner", 0, plan.offsets[argument.index] + argument.offset)
        return argument

    moved = (replace(call, arguments=tuple(map(placed, call.arguments))) for call in calls)
    return tuple(moved), plan.n_bytes
