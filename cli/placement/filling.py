"""Filling nodes one after the other, each by a small linear program.

A row of it is one thing that a node has: memory, time, reading. Of each it takes at least what the nodes
after it could not, and at most what it has. Models that take much memory are taken first, since those
that take little fill what is left. An optimum at a corner divides no more models than there are rows, so
requests are divided among few replicas, and every other model is on the node as a whole or not at all. (As
in rounding a linear program at its corners: Lenstra, Shmoys, Tardos: Approximation algorithms for
scheduling unrelated parallel machines, 1990.) A share of a model that is divided needs all of its memory:
where there is no room for that, the same program is solved with whole replicas.
"""

from typing import Any

import numpy as np

from cli.placement.problem import (
    TOLERANCE,
    Chosen,
    Counts,
    Floats,
    Placement,
    PlacementProblem,
    Replica,
    Wants,
)

# A replica answers at least so much of what is asked, or of what a node of its own would.
_LEAST_SHARE = 0.01
# What is missing of what a node should take counts as ten times its memory full of one model.
_MISSING = 10.0
# Of the search for whole replicas: the same on any machine.
_SEARCH = {"mip_rel_gap": 0.05, "node_limit": 200}


class FilledNodes:
    """Nodes as they fill: what is free of each, and what each model still wants."""

    def __init__(self, problem: PlacementProblem, kept: Placement = ()) -> None:
        self.problem = problem
        self.free = np.column_stack([problem.memory.astype(np.float64), problem.rates])
        #: By node and model, requests a second.
        self.shares: list[dict[int, float]] = [{} for _ in problem.nodes]
        wants = Wants.of(problem)
        self._requests, self._replicas = wants.requests, wants.replicas
        for each in kept:
            self.put(each.model, each.node, each.requests)

    def put(self, model: int, node: int, requests: float) -> None:
        """Place a replica of ``model`` on ``node`` that answers so many ``requests``."""
        self.shares[node][model] = requests
        self.free[node, 0] -= self.problem.needs[model]
        self.free[node, 1:] -= self.problem.costs[model] * requests
        self._requests[model] -= requests
        self._replicas[model] -= 1

    @property
    def wants(self) -> Wants:
        """What is still missing."""
        asked = np.array([model.requests for model in self.problem.models])
        more = self._requests > TOLERANCE / 10 * np.maximum(asked, 1.0)
        models = np.flatnonzero(more | (self._replicas > 0))
        return Wants(
            models,
            np.where(more, self._requests, 0.0)[models],
            np.maximum(self._replicas[models], 1),
        )

    @property
    def used(self) -> Counts:
        """The nodes that have a replica."""
        return np.array([number for number, here in enumerate(self.shares) if here], np.int64)

    @property
    def unused(self) -> Counts:
        """The nodes that have none."""
        return np.array([number for number, here in enumerate(self.shares) if not here], np.int64)

    @property
    def placement(self) -> list[Replica]:
        """What was placed."""
        return [
            Replica(model, node, requests)
            for node, here in enumerate(self.shares)
            for model, requests in here.items()
        ]


def fill(filling: FilledNodes, nodes: Counts, wants: Wants) -> None:
    """Place what ``wants`` say on ``nodes``, one after the other, as far as there is room."""
    problem = filling.problem
    needs, costs = problem.needs[wants.models], problem.costs[wants.models]
    asked = np.array([problem.models[model].requests for model in wants.models], np.float64)
    enough = TOLERANCE / 10 * np.maximum(asked, 1.0)
    requests, replicas = wants.requests.copy(), wants.replicas.copy()
    later = filling.free[nodes].sum(axis=0)
    taken = np.zeros((0, 2))
    for position, node in enumerate(nodes.tolist()):
        free = filling.free[node]
        later = later - np.where(np.isfinite(free), free, 0.0)
        alone = _room(costs, problem.rates[node])
        more = np.where(requests > enough, requests / alone - TOLERANCE, 0.0)
        wanted = np.maximum(replicas, np.ceil(more))
        if not wanted.any():
            return
        total = np.array([(needs * wanted).sum(), *(costs * requests[:, None]).sum(axis=0)])
        least = np.where(np.isfinite(free), np.maximum(total - later, 0.0), 0.0)
        may = (wanted > 0) & problem.allowed[wants.models, problem.kind_numbers[node]]
        may &= ~np.isin(wants.models, list(filling.shares[node]))
        most = np.minimum(requests, _room(costs, free[1:]))
        may &= (needs <= free[0]) & (most >= _LEAST_SHARE * np.minimum(requests, alone))
        if not may.any():
            continue
        if not _does_again(taken, may, most, (needs, costs), free, least):
            some = np.flatnonzero(may)
            must = wanted[some] >= len(nodes) - position
            shares = _chosen(needs[some], costs[some] * most[some, None], must, free, least)
            takes = shares >= 0
            taken = np.column_stack([some[takes], (shares * most[some])[takes]])
        for number, part in taken:
            model = int(number)
            is_all = requests[model] - part < enough[model]
            share = requests[model] if is_all else part
            filling.put(int(wants.models[model]), node, float(share))
            requests[model] -= share
            replicas[model] -= 1


def _room(costs: Floats, free: Floats) -> Floats:
    """Return how many requests of each model so much ``free`` time and reading is enough for."""
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(costs > 0, np.maximum(free, 0.0) / costs, np.inf)
    found: Floats = room.min(axis=1)
    return found


def _does_again(
    taken: Floats,
    may: Chosen,
    most: Floats,
    takes: tuple[Counts, Floats],
    free: Floats,
    least: Floats,
) -> bool:
    """Return whether what the node before has ``taken`` is as good for one with so much ``free``."""
    models, shares = taken[:, 0].astype(np.int64), taken[:, 1]
    if not len(models) or not may[models].all() or (shares > most[models]).any():
        return False
    needs, costs = takes
    used = np.array([needs[models].sum(), *(costs[models] * shares[:, None]).sum(axis=0)])
    return bool((used <= free).all() and (used >= least * (1 - TOLERANCE)).all())


def _chosen(needs: Counts, loads: Floats, must: Chosen, free: Floats, least: Floats) -> Floats:
    """Return which share of each model's ``loads`` [models, 2] a node takes, -1 where no replica of it.

    Of those that it ``must`` take there is a replica whatever its share. ``free``, ``least``: of memory,
    time and reading, what there is and what it should take at least.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array, eye_array, hstack

    count, most = len(needs), np.maximum(free, 0.0)
    must = must & (np.where(must, needs, 0).cumsum() <= most[0])
    scale = np.where(np.isfinite(most) & (most > 0), most, 1.0)
    # Columns: replicas, then shares, then what is missing of each row. What is missing counts beside what
    # is taken, so that the upper end holds for the sum.
    rows = np.zeros((3, 2 * count + 3))
    rows[0, :count], rows[1:, count:-3] = needs, loads.T
    rows = rows / scale[:, None]
    rows[:, -3:] = np.eye(3)
    here = hstack([-eye_array(count), eye_array(count), csr_array((count, 3))])
    constraints = [
        LinearConstraint(csr_array(rows), np.minimum(least, most) / scale, most / scale),
        LinearConstraint(here, -np.inf, 0.0),
    ]
    values = (needs / max(most[0], 1.0)) ** 2 + 1e-6
    costs = np.concatenate([np.zeros(count), -values, np.full(3, _MISSING)])
    lower = np.concatenate([must, np.zeros(count + 3)])
    on, shares = must, np.zeros(count)
    for whole in (False, True):
        found: Any = milp(
            costs,
            constraints=constraints,
            bounds=Bounds(lower, 1),
            integrality=np.arange(len(costs)) < count if whole else None,
            options=_SEARCH if whole else None,
        )
        if found.x is None:
            break
        shares = found.x[count:-3]
        on = must | (shares > TOLERANCE)
        if needs[on].sum() <= free[0]:
            return np.where(on, shares, -1.0)
    # The solver's sums are floats, bytes are whole.
    kept = np.where(must, needs, 0).sum() + np.where(on & ~must, needs, 0).cumsum() <= free[0]
    return np.where(must | (on & kept), shares, -1.0)
