"""Names that are not taken, and an order in which what is needed comes first."""

import heapq
from collections.abc import Mapping


def stable_order(needs: Mapping[int, set[int]]) -> list[int]:
    """Return the keys of ``needs`` so that each follows those that it needs, otherwise ascending.

    What lies on a circle, or behind one, is left out.
    """
    users: dict[int, list[int]] = {key: [] for key in needs}
    for key, needed in needs.items():
        for other in needed:
            users[other].append(key)
    missing = {key: len(needed) for key, needed in needs.items()}
    ready = [key for key, count in missing.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        key = heapq.heappop(ready)
        order.append(key)
        for user in users[key]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    return order


def fresh(name: str, used: set[str]) -> str:
    """Return ``name``, or a longer one where that is ``used``; it is among them then."""
    while name in used:
        name += "_"
    used.add(name)
    return name
