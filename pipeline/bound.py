"""An upper bound of the delay of a sweep, by max-plus analysis of its schedule (docs/streaming.md).

Every start is a maximum of ends, every end a start plus a duration, and reads take servers in the order of
their release: so longer durations never make anything earlier, and the recurrence with upper bounds of
all durations bounds every execution.
"""

from collections.abc import Sequence

import numpy as np

from pipeline.durations import Durations
from pipeline.schedule import Stage
from pipeline.timeline import Fifo, Interval, Server, recur
from pipeline.windows import Windows


def bound(
    stages: Sequence[Stage],
    durations: Durations,
    windows: Windows | None = None,
    read_windows: Windows | None = None,
    carried: int = 0,
) -> float:
    """Return seconds that no sweep exceeds whose operations stay within ``durations`` and windows.

    It holds whatever the sweep before left in flight; with ``carried`` only if so many reads of the head
    are complete when the sweep begins. Kernels count as slowed down all the time.

    ``windows`` are of the kernels, ``read_windows`` of the reads without those for the next sweep.

    Raises:
        ValueError: windows of another number of operations.
    """
    factor = 1.0 + durations.slowdown
    rows = [*durations.stages[:-1], tuple(factor * seconds for seconds in durations.stages[-1])]
    # Reads for the next sweep delay nothing in this one: they come after all others.
    own = [Stage(stage.name, stage.after[: len(stage) - stage.ahead]) for stage in stages]
    servers: list[Server] = [Fifo(row) for row in rows]
    servers[0] = Fifo(rows[0], durations.depth)
    if read_windows is not None:
        servers[0] = _Windowed(rows[0], _fitting(read_windows, own[0]), durations.depth)
    if windows is not None:
        servers[-1] = _Windowed(rows[-1], _fitting(windows, own[-1], factor), 1)
    _, ends = recur(own, servers, [(0.0, 0.0)] * carried)
    return max((max(row) for row in ends if row), default=0.0)


def _fitting(windows: Windows, stage: Stage, factor: float = 1.0) -> Windows:
    if windows.operations != len(stage):
        raise ValueError(
            f"windows of {windows.operations} operations, not {len(stage)} {stage.name}s"
        )
    return Windows(
        windows.operations, tuple(tuple(factor * n for n in row) for row in windows.maxima)
    )


class _Windowed:
    """``depth`` servers in one line whose runs of operations stay within windows.

    Let operation j wait in line, and i be the last one before it that did not. From the start of i to that
    of j all servers work: on operations [i, j) and on what depth - 1 earlier ones have left.
    """

    def __init__(self, seconds: Sequence[float], windows: Windows, depth: int) -> None:
        self._plain = Fifo(seconds, depth)
        self._seconds = seconds
        self._depth = depth
        self._runs = windows.runs()
        # What run i begins with: its release, and the longest that earlier operations have left.
        self._begun = np.full(windows.operations, -np.inf)
        self._left = [0.0] * (depth - 1)
        self._released = 0.0

    def serve(self, index: int, ready: float) -> Interval:
        self._released = max(self._released, ready)
        self._begun[index] = self._released + sum(self._left) / self._depth
        runs = self._begun[: index + 1] + self._runs[index, : index + 1] / self._depth
        waited = max(self._released, float(runs[:-1].max(initial=0.0)))
        plain_start, plain_end = self._plain.serve(index, self._released)
        start = min(waited, plain_start)
        end = start + self._seconds[index]
        if self._depth == 1:
            runs = self._begun[: index + 1] + self._runs[index + 1, : index + 1]
            end = min(end, float(runs.max()))
        self._left = sorted([*self._left, self._seconds[index]])[1:] if self._left else []
        return start, min(end, plain_end)
