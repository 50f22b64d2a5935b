"""Sizes to try: of those that are all too similar one is enough."""

from collections.abc import Sequence


def spaced(sizes: Sequence[int], ratio: float) -> list[int]:
    """Return the first of ``sizes``, and each that is at least ``ratio`` times the last one returned."""
    kept = list(sizes[:1])
    for size in sizes[1:]:
        if size >= ratio * kept[-1]:
            kept.append(size)
    return kept
