"""How few nodes would do at least, and what each kind of them would hold: a linear program.

HiGHS solves it, as SciPy has it. Nodes of one kind are one variable, how many of them are used, and
replicas are divisible: so no placement uses fewer, and a good one puts models on kinds alike. Where some
replicas are placed already each of them is a variable, too: how many requests it answers. The same
program with each node as a kind of its own and whole replicas is the problem itself, for small ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cli.placement.problem import (
    TOLERANCE,
    Chosen,
    Counts,
    FleetNode,
    Floats,
    Model,
    Placement,
    PlacementProblem,
    Replica,
    Wants,
    faults,
)

# Of each search for whole numbers; the best that was found till then is taken.
_SECONDS = 10.0
_GAP = 1e-3
_INFEASIBLE = 2  # as the solver numbers how it ended
# Replicas that there could be, models by nodes: with more of them a search of all is not begun.
_MOST_REPLICAS = 2_000
# Few models go on new nodes where those of which little does so count more; all of them less than a node.
# (Candes, Wakin, Boyd: Enhancing sparsity by reweighted l1 minimization, 2008.)
_ROUNDS = 3
_SMALL = 0.02
_ALL_MODELS = 0.1


@dataclass(frozen=True)
class Relaxation:
    """``bound``: the least number of nodes. By kind: ``counts`` of nodes, ``wants`` of them."""

    bound: float
    counts: Sequence[int]
    wants: Sequence[Wants]


def relaxed(
    problem: PlacementProblem,
    wants: Wants | None = None,
    counts: Counts | None = None,
    *,
    whole_nodes: bool = True,
) -> Relaxation | None:
    """Return the least of the linear program; None: there are too few nodes.

    ``wants``: of all models by default. ``counts``: how many nodes of each kind there are, by default all.
    ``whole_nodes``: they are used as a whole.
    """
    wants = Wants.of(problem) if wants is None else wants
    counts = np.bincount(problem.kind_numbers) if counts is None else counts
    program = _Program(problem, wants, counts)
    if not program.has_homes:
        return None
    bound, solution = program.least(program.is_node if whole_nodes else None)
    if solution is None and whole_nodes:
        bound, solution = program.least()
    if solution is None:
        return None
    replicas, requests = program.by_kind(solution)
    found = [int(count) for count in np.ceil(solution[: len(counts)] - TOLERANCE)]
    return Relaxation(bound, found, _divided(wants, replicas, requests))


def searched(problem: PlacementProblem) -> tuple[Placement | None, bool]:
    """Return a placement that a search of all of them found, and whether there is none for sure.

    There is none where divisible replicas would want more nodes, and where the search came to its end; in
    large problems it is not begun.
    """
    wants = Wants.of(problem)
    program = _Program(problem, wants, np.bincount(problem.kind_numbers))
    if not program.has_homes or program.least()[0] == np.inf:
        return None, True
    if len(problem.models) * len(problem.nodes) > _MOST_REPLICAS:
        return None, False
    program = _Program(problem, wants, np.ones(len(problem.nodes), np.int64), each_node=True)
    bound, solution = program.least(program.is_node | program.is_replica)
    if solution is None:
        return None, bound == np.inf
    replicas, requests = program.by_kind(solution)
    found = [
        Replica(int(model), node, float(share))
        for node, here in enumerate(_divided(wants, np.rint(replicas), requests))
        for model, share in zip(here.models, here.requests, strict=True)
    ]
    # The solver's sums are floats, bytes are whole.
    return (None if any(faults(problem, found)) else found), False


def divided(problem: PlacementProblem, kept: Placement) -> Placement:
    """Return ``kept`` with requests such that few more nodes would do, and then few models there.

    Of idle ones there are no more than their models must have.
    """
    wants = Wants.of(problem)
    there = np.bincount([each.model for each in kept], minlength=len(problem.models))
    wants = replace(wants, replicas=np.maximum(wants.replicas - there, 0))
    used = np.unique([each.node for each in kept]).astype(np.int64)
    counts = np.bincount(np.delete(problem.kind_numbers, used), minlength=len(problem.kinds))
    program = _Program(problem, wants, counts, kept)
    weights = np.ones(len(wants.models))
    answered: Floats = np.array([each.requests for each in kept])
    for _ in range(_ROUNDS):
        solution = program.least(weights=weights * _ALL_MODELS / len(weights))[1]
        if solution is None:
            break
        answered = solution[program.first_kept :]
        # At least what is asked: where more is for nothing it may be more.
        total = np.bincount(program.models_kept, answered, len(weights))
        answered = (
            answered
            * np.minimum(1.0, wants.requests / np.maximum(total, 1e-300))[program.models_kept]
        )
        asked = np.where(wants.requests > 0, wants.requests, 1.0)
        left = np.maximum(wants.requests - total, 0) / asked
        weights = _SMALL / (left + _SMALL)
    found = []
    for each, requests in zip(kept, answered, strict=True):
        model = problem.models[each.model]
        if requests <= TOLERANCE * model.requests and there[each.model] > model.replicas:
            there[each.model] -= 1
        else:
            found.append(replace(each, requests=max(float(requests), 0.0)))
    return found


@dataclass
class _Rows:
    """Rows of a linear program, each at most some number: places, factors and that number."""

    places: list[tuple[int, int]] = field(default_factory=list)
    factors: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)

    def add(self, terms: Mapping[int, float], most: float) -> None:
        """Add one row: of ``terms``, factors by column, the sum is at most ``most``."""
        self.places += [(len(self.most), column) for column in terms]
        self.factors += terms.values()
        self.most.append(most)


class _Program:
    """The linear program.

    By kind of node k, z_k nodes are used; each model m that may go there has x_mk replicas and y_mk
    requests. The sum of z is least where every model has its replicas and requests, no kind gives more
    memory, time and reading than z_k nodes have, x_mk <= z_k, and no replica answers more than a node.
    Replicas that are ``kept`` answer s_r requests, and no node of theirs gives more time and reading.
    ``each_node``: it is a kind of its own.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        wants: Wants,
        counts: Counts,
        kept: Placement = (),
        *,
        each_node: bool = False,
    ) -> None:
        kinds = problem.nodes if each_node else problem.kinds
        allowed = problem.allowed[:, problem.kind_numbers] if each_node else problem.allowed
        self._rows, self._counts = _Rows(), counts
        self._shape = len(wants.models), len(kinds)
        may = allowed[wants.models] & (counts > 0)
        self.has_homes = bool(may.any(axis=1).all())
        #: Of each x, its model and kind; y comes after x.
        self._of_column = np.argwhere(may)
        self._wants = wants
        self.first_kept = len(kinds) + 2 * len(self._of_column)
        self.models_kept = np.array([each.model for each in kept], np.int64)
        self.columns = self.first_kept + len(kept)
        column = np.arange(self.columns)
        self.is_node = column < len(kinds)
        self.is_replica = (
            (column < self.first_kept) & ~self.is_node & ((column - len(kinds)) % 2 == 0)
        )
        needed: list[dict[int, float]] = [{} for _ in wants.models]
        asked: list[dict[int, float]] = [{} for _ in wants.models]
        given: list[list[dict[int, float]]] = [
            [{kind: -1.0} for _ in range(3)] for kind in range(len(kinds))
        ]
        for number, (place, kind) in enumerate(self._of_column.tolist()):
            model, x = problem.models[wants.models[place]], len(kinds) + 2 * number
            self._rows.add({x: 1.0, kind: -1.0}, 0.0)
            if model.requests:
                served = kinds[kind].served(model)
                most = served if np.isfinite(served) else model.requests
                self._rows.add({x + 1: 1 / most, x: -1.0}, 0.0)
            for part, share in enumerate(_shares(model, kinds[kind])):
                if share:
                    given[kind][part][x + 1 if part else x] = share
            needed[place][x] = asked[place][x + 1] = -1.0
        for number, each in enumerate(kept):
            asked[each.model][self.first_kept + number] = -1.0
        for place, (requests, replicas) in enumerate(
            zip(wants.requests.tolist(), wants.replicas.tolist(), strict=True)
        ):
            self._rows.add(needed[place], -replicas)
            self._rows.add(asked[place], -requests)
        for terms in (each for parts in given for each in parts):
            self._rows.add(terms, 0.0)
        for terms in _per_node(problem, kept, self.first_kept):
            self._rows.add(terms, 1.0)

    def least(
        self, whole: Chosen | None = None, weights: Floats | None = None
    ) -> tuple[float, Floats | None]:
        """Return the least number of nodes, infinite where there is no solution, and all columns.

        No columns: none were found. ``whole``: which of them are whole numbers. ``weights``: what all
        requests of each model count beside a node, where they go on new ones.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_array

        rows, counts = self._rows, self._counts
        place = np.array(rows.places, np.int64).T
        shape = len(rows.most), self.columns
        matrix = csr_array((rows.factors, (place[0], place[1])), shape=shape)
        costs = self.is_node.astype(np.float64)
        if weights is not None:
            asked = self._wants.requests
            of_requests = np.divide(weights, asked, out=np.zeros_like(asked), where=asked > 0)
            costs[len(counts) + 1 : self.first_kept : 2] = of_requests[self._of_column[:, 0]]
        found: Any = milp(
            costs,
            constraints=LinearConstraint(matrix, -np.inf, rows.most),
            bounds=Bounds(0, [*counts.tolist(), *[np.inf] * (self.columns - len(counts))]),
            integrality=whole,
            options=None if whole is None else {"time_limit": _SECONDS, "mip_rel_gap": _GAP},
        )
        if found.x is None:
            return (np.inf if found.status == _INFEASIBLE else 0.0), None
        return float(found.fun if whole is None else found.mip_dual_bound), found.x

    def by_kind(self, solution: Floats) -> tuple[Floats, Floats]:
        """Return replicas and requests [models, kinds]."""
        found = np.zeros((2, *self._shape))
        both = solution[self._shape[1] : self.first_kept].reshape(-1, 2)
        found[:, self._of_column[:, 0], self._of_column[:, 1]] = both.T
        return found[0], found[1]


def _shares(model: Model, kind: FleetNode) -> tuple[float, float, float]:
    """Return what of a node a replica takes of memory, and a request a second of time and reading."""
    return (
        model.need_bytes / max(kind.memory_bytes, 1),
        model.seconds / kind.speed,
        model.read_bytes / kind.read_bytes,
    )


def _per_node(problem: PlacementProblem, kept: Placement, first: int) -> list[dict[int, float]]:
    """Return rows: what replicas take of a node's time and reading; their columns begin at ``first``."""
    found: dict[tuple[int, int], dict[int, float]] = {}
    for column, each in enumerate(kept, first):
        shares = _shares(problem.models[each.model], problem.nodes[each.node])
        for part, share in enumerate(shares[1:]):
            if share:
                found.setdefault((each.node, part), {})[column] = share
    return list(found.values())


def _divided(wants: Wants, replicas: Floats, requests: Floats) -> list[Wants]:
    """Return what is wanted of each kind: of ``replicas`` [models, kinds] one where it has requests."""
    asked = wants.requests[:, None]
    uses = (replicas > 1e-6) & ((requests > 1e-6 * asked) | (asked == 0))
    idle = ~uses.any(axis=1)
    uses[idle] = (replicas == replicas.max(axis=1, keepdims=True))[idle]
    requests = np.where(uses, requests, 0.0)
    # Where more is for nothing it may be more than is asked.
    answered = requests.sum(axis=1, keepdims=True)
    requests = np.divide(
        requests * asked, answered, out=np.zeros_like(requests), where=answered > 0
    )
    whole: NDArray[np.int64] = uses.astype(np.int64)
    for number, least in enumerate(wants.replicas):
        while whole[number].sum() < least:
            whole[number, int((replicas[number] - whole[number]).argmax())] += 1
    return [
        Wants(wants.models[some], requests[some, k], whole[some, k])
        for k in range(whole.shape[1])
        for some in [np.flatnonzero(whole[:, k])]
    ]
