"""Times between those that were measured."""

from bisect import bisect_left
from collections.abc import Mapping


def interpolated(table: Mapping[int, float], at: int) -> float:
    """Return the value at ``at``: linear between entries, in proportion above the last one.

    Below the first one it is the first one's: what every operation costs, however small.
    """
    known = sorted(table)
    position = bisect_left(known, at)
    if position == len(known):
        return table[known[-1]] * at / known[-1]
    high = known[position]
    if position == 0 or high == at:
        return table[high]
    low = known[position - 1]
    share = (at - low) / (high - low)
    return table[low] + share * (table[high] - table[low])
