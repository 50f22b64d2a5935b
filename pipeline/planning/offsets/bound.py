"""The least bytes that any placement can have, without a search."""

from collections import defaultdict

from pipeline.planning.offsets.problem import Problem


def lower_bound(problem: Problem) -> int:
    """Return the largest live set of any step with padded sizes, or where the highest pin ends."""
    change: dict[int, int] = defaultdict(int)
    highest = 0
    for buffer in problem.buffers:
        if not buffer.takes_room:
            continue
        change[buffer.start] += buffer.padded_bytes
        change[buffer.end] -= buffer.padded_bytes
        if buffer.pin is not None:
            highest = max(highest, buffer.pin + buffer.padded_bytes)
    live = 0
    for step in sorted(change):
        live += change[step]
        highest = max(highest, live)
    return highest
