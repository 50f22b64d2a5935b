"""How few nodes would do at least, and what each kind of them would hold: a linear program.

HiGHS solves it, as SciPy has it (extra ``place``). Nodes of one kind are one variable, how many of them
are used, and replicas are divisible: so no placement uses fewer, and a good one puts models on kinds alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cli.placement.problem import FleetNode, Floats, Model, PlacementProblem

_TOO_FEW = 2  # HiGHS: no solution


@dataclass(frozen=True)
class Relaxation:
    """``bound``: the least number of nodes, infinity where all are too few; then there is no more to say.

    By kind: ``counts`` of nodes that are used; ``replicas`` and ``requests`` [models, kinds].
    """

    bound: float
    kinds: Sequence[FleetNode] = ()
    counts: Sequence[float] = ()
    replicas: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    requests: Floats = field(default_factory=lambda: np.zeros((0, 0)))


def kind_of(node: FleetNode) -> FleetNode:
    """Return what nodes have in common that are as good as ``node``."""
    return replace(node, name="")


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


def is_there() -> bool:
    """Return whether the solver is installed."""
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        return False
    return True


def relaxed(problem: PlacementProblem) -> Relaxation:
    """Return the least of the linear program.

    By kind of node k, z_k nodes are used; each model m that may go there has x_mk replicas and y_mk
    requests. The sum of z is least where every model has its replicas and requests, no kind gives more
    memory, time and reading than z_k nodes have, x_mk <= z_k, and no replica answers more than a node.
    """
    kinds = list(dict.fromkeys(map(kind_of, problem.nodes)))
    homes = [[k for k, kind in enumerate(kinds) if kind.takes(model)] for model in problem.models]
    if not all(homes):
        return Relaxation(float("inf"))
    rows, columns = _Rows(), len(kinds)
    balance: list[list[dict[int, float]]] = [
        [{number: -1.0} for _ in range(3)] for number in range(len(kinds))
    ]
    for model, places in zip(problem.models, homes, strict=True):
        for k in places:
            x, y = columns, columns + 1
            columns += 2
            rows.add({x: 1.0, k: -1.0}, 0.0)
            if np.isfinite(served := kinds[k].served(model)) and model.requests:
                rows.add({y: 1 / served, x: -1.0}, 0.0)
            for part, share in enumerate(_shares(model, kinds[k])):
                if share:
                    balance[k][part][y if part else x] = share
        first = columns - 2 * len(places)
        rows.add(dict.fromkeys(range(first, columns, 2), -1.0), -float(model.replicas))
        rows.add(dict.fromkeys(range(first + 1, columns, 2), -1.0), -model.requests)
    for terms in (each for parts in balance for each in parts):
        rows.add(terms, 0.0)
    solution = _least(rows, columns, _counts(problem, kinds))
    if solution is None:
        return Relaxation(float("inf"))
    return _read(problem, kinds, homes, solution)


def _shares(model: Model, kind: FleetNode) -> tuple[float, float, float]:
    """Return what of a node a replica takes of memory, and a request a second of time and reading."""
    return (
        model.need_bytes / max(kind.memory_bytes, 1),
        model.seconds / kind.speed,
        model.read_bytes / kind.read_bytes,
    )


def _counts(problem: PlacementProblem, kinds: Sequence[FleetNode]) -> list[int]:
    numbers = {kind: number for number, kind in enumerate(kinds)}
    of_nodes = [numbers[kind_of(node)] for node in problem.nodes]
    return [int(count) for count in np.bincount(of_nodes, minlength=len(kinds))]


def _least(rows: _Rows, columns: int, counts: Sequence[int]) -> Floats | None:
    """Return the columns at the least sum of the first ones, of each of which there are so many at most."""
    from scipy.optimize import linprog
    from scipy.sparse import csr_array

    place = np.array(rows.places, np.int64).T
    matrix = csr_array((rows.factors, (place[0], place[1])), shape=(len(rows.most), columns))
    costs = np.zeros(columns)
    costs[: len(counts)] = 1.0
    bounds = [*((0, count) for count in counts), *[(0, None)] * (columns - len(counts))]
    result: Any = linprog(costs, A_ub=matrix, b_ub=rows.most, bounds=bounds, method="highs")
    if result.status == _TOO_FEW:
        return None
    solution: Floats = result.x
    return solution


def _read(
    problem: PlacementProblem,
    kinds: Sequence[FleetNode],
    homes: Sequence[Sequence[int]],
    solution: Floats,
) -> Relaxation:
    shape = len(problem.models), len(kinds)
    replicas, requests = np.zeros(shape), np.zeros(shape)
    column = len(kinds)
    for number, places in enumerate(homes):
        for k in places:
            replicas[number, k], requests[number, k] = solution[column : column + 2]
            column += 2
        answered = requests[number].sum()
        if answered > 0:  # where more is for nothing it may be more than is asked
            requests[number] *= problem.models[number].requests / answered
    counts = solution[: len(kinds)]
    return Relaxation(float(counts.sum()), kinds, counts.tolist(), replicas, requests)
