"""Filling nodes by rules: largest first, each where what is free is most like what it takes.

First-fit decreasing on vectors (Panigrahy, Talwar, Uyeda, Wieder: Heuristics for Vector Bin Packing, 2011),
with loads that divide: a model whose requests no node has room for gets as many replicas as it takes, and
leaves on each node some of the time and reading that models which come later will want there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cli.placement.problem import TOLERANCE, Floats, Placement, PlacementProblem, Replica

Chosen = NDArray[np.bool_]

_LITTLE = 1e-9
# Where no share is as large as it should be, those are taken that are nearly as large as the largest.
_NEARLY = 0.7
_ROUNDS = 4


@dataclass(frozen=True)
class Manner:
    """How loads are divided. ``left``: what a node keeps for later models, of their part of its memory.

    ``share``: what a replica answers at least, of what its node could or of what is asked.
    """

    left: float
    share: float


#: The first where memory is scarce: few replicas. The second where time and reading are: alike everywhere.
MANNERS = (Manner(0.6, 0.3), Manner(1.0, 0.0))


class FilledNodes:
    """Nodes as they fill: what is free of each, and what each model still wants."""

    def __init__(self, problem: PlacementProblem, kept: Placement = ()) -> None:
        self.problem = problem
        self.free_bytes = problem.memory.copy()
        self.free = problem.rates.copy()
        self.shares: list[dict[int, float]] = [{} for _ in problem.models]
        #: Requests a second to each model that no replica answers yet.
        self.requests = np.array([model.requests for model in problem.models], np.float64)
        for each in kept:
            self.put(each.model, each.node, each.requests)

    def put(self, model: int, node: int, requests: float) -> None:
        """Have ``node`` answer so many ``requests`` more, with a replica that comes where there is none."""
        shares = self.shares[model]
        if node not in shares:
            self.free_bytes[node] -= self.problem.needs[model]
        shares[node] = shares.get(node, 0.0) + requests
        self.requests[model] -= requests
        self._spend(model, node, requests)

    def take(self, model: int, node: int) -> float:
        """Remove the replica; return the requests that it answered."""
        requests = self.shares[model].pop(node)
        self.free_bytes[node] += self.problem.needs[model]
        self.requests[model] += requests
        self._spend(model, node, -requests)
        return requests

    def _spend(self, model: int, node: int, requests: float) -> None:
        self.free[node] -= self.problem.costs[model] * requests

    def missing(self, model: int) -> int:
        """Return how many replicas of the least are missing."""
        return max(self.problem.models[model].replicas - len(self.shares[model]), 0)

    def wants(self, model: int) -> bool:
        """Return whether anything is missing."""
        asked = self.problem.models[model].requests
        return self.missing(model) > 0 or self.requests[model] > TOLERANCE / 10 * max(asked, 1.0)

    def room(self, model: int, free: Floats) -> Floats:
        """Return how many requests more there is time for, and reading, where so much is ``free``."""
        costs = self.problem.costs[model]
        requests = np.full(len(free), np.inf)
        for part in np.flatnonzero(costs):
            np.minimum(requests, free[:, part] / costs[part], out=requests)
        return requests

    def takes(self, model: int) -> Chosen:
        """Return which nodes may get a replica, time and reading aside."""
        may: Chosen = self.problem.eligible(model) & (self.free_bytes >= self.problem.needs[model])
        may[list(self.shares[model])] = False
        return may

    @property
    def placement(self) -> list[Replica]:
        """What was placed."""
        return [
            Replica(model, node, max(requests, 0.0))
            for model, shares in enumerate(self.shares)
            for node, requests in shares.items()
        ]


def order_of(problem: PlacementProblem, nodes: Chosen) -> list[int]:
    """Return the models, those first that take most of one of these ``nodes``."""
    memory = max(int(problem.memory[nodes].max(initial=1)), 1)
    rates = problem.rates[nodes].max(axis=0, initial=_LITTLE)
    loads = np.minimum((problem.loads / rates).max(axis=1), 1.0)
    return [
        int(model)
        for model in np.argsort(-np.maximum(problem.needs / memory, loads), kind="stable")
    ]


def pack(filling: FilledNodes, models: Sequence[int], nodes: Chosen, manner: Manner) -> list[int]:
    """Place what ``models`` want on ``nodes``, in this order; return those for which there was no room.

    Where there is none, replicas go whose requests others of their model have time for; then again.
    """
    left = fill(filling, models, nodes, manner)
    for _ in range(_ROUNDS):
        if not left or not _condense(filling):
            break
        left = fill(filling, left, nodes, manner)
    return left


def stretch(filling: FilledNodes, model: int) -> None:
    """Let the replicas that are there answer as many requests as they have time for."""
    nodes = list(filling.shares[model])
    if filling.requests[model] <= 0 or not nodes:
        return
    room = filling.room(model, filling.free[nodes])
    for place in np.flatnonzero(room > 0):
        if (wanted := float(filling.requests[model])) <= 0:
            return
        filling.put(model, nodes[place], min(float(room[place]), wanted))


def fill(filling: FilledNodes, models: Sequence[int], nodes: Chosen, manner: Manner) -> list[int]:
    """Place what ``models`` want on ``nodes``, in this order; return those for which there was no room."""
    problem = filling.problem
    later = problem.loads[list(models)].sum(axis=0)
    left = []
    for model in models:
        later = np.maximum(later - problem.loads[model], 0.0)
        stretch(filling, model)
        while filling.wants(model):
            takes = filling.takes(model) & nodes
            if not takes.any() or not _place(filling, model, takes, later, manner):
                left.append(model)
                break
    return left


def _place(filling: FilledNodes, model: int, takes: Chosen, later: Floats, manner: Manner) -> bool:
    """Give ``model`` a replica or more on nodes that it ``takes``; return whether there was room for any.

    ``later``: what models after it take of time and reading.
    """
    share = float(filling.requests[model]) / max(filling.missing(model), 1)
    share = max(share, 0.0)
    whole = takes & (filling.room(model, filling.free) >= share * (1 - _LITTLE))
    if whole.any():
        filling.put(model, _most_alike(filling, model, share, whole), share)
        return True
    room = _shares(filling, model, takes, later, manner)
    places = np.flatnonzero(room > _LITTLE)
    for node in places[np.argsort(-room[places], kind="stable")]:
        if (wanted := float(filling.requests[model])) <= 0:
            break
        filling.put(model, int(node), min(float(room[node]), wanted))
    return len(places) > 0


def _most_alike(filling: FilledNodes, model: int, share: float, among: Chosen) -> int:
    """Return the node on which what is free is most alike what is taken, by the cosine between them.

    Each is measured by what a node has free on average, and of reading without end as much as one takes.
    """
    problem, places = filling.problem, np.flatnonzero(among)
    taken = np.array([problem.needs[model], *(problem.costs[model] * share)], np.float64)
    free = np.column_stack([filling.free_bytes[places], filling.free[places]]).astype(np.float64)
    endless = np.isinf(free)
    free[endless] = 0.0
    mean = free.mean(axis=0)
    mean[mean <= 0] = 1.0
    free, taken = free / mean, taken / mean
    free[endless] = 1.0
    alike = free @ taken / np.sqrt((free * free).sum(axis=1) + _LITTLE)
    return int(places[alike.argmax()])


def _shares(
    filling: FilledNodes, model: int, takes: Chosen, later: Floats, manner: Manner
) -> Floats:
    """Return what a replica on each node would answer of requests that must be divided; 0: none there."""
    problem = filling.problem
    free_bytes = np.maximum(filling.free_bytes - problem.needs[model], 0)
    part = free_bytes / max(int(filling.free_bytes[takes].sum()), 1)
    room = filling.room(model, filling.free - manner.left * part[:, None] * later)
    asked = float(filling.requests[model])
    least = manner.share * np.minimum(filling.room(model, problem.rates), asked)
    room = np.where(takes & (room >= least), np.maximum(room, 0.0), 0.0)
    if (room > _LITTLE).any():
        return room
    room = np.where(takes, np.maximum(filling.room(model, filling.free), 0.0), 0.0)
    return np.where(room >= _NEARLY * room.max(), room, 0.0)


def _condense(filling: FilledNodes) -> bool:
    """Take replicas away whose requests others of the same model have time for; return whether any went."""
    went = False
    for model, shares in enumerate(filling.shares):
        least = max(filling.problem.models[model].replicas, 1)
        if len(shares) <= least:
            continue
        for node in sorted(shares, key=shares.__getitem__):
            others = [each for each in shares if each != node]
            room = np.maximum(filling.room(model, filling.free[others]), 0.0)
            if len(shares) <= least or room.sum() < shares[node] * (1 + TOLERANCE):
                break
            filling.take(model, node)
            stretch(filling, model)
            went = True
    return went
