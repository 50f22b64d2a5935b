"""What is to be placed, on what, and what a placement is; ``faults`` judges each one.

Memory is whole: a replica has all of its need, or is not there. Requests are not: those to a model are
divided among its replicas, in shares of any size, so what a node computes and reads is filled to the brim.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Chosen = NDArray[np.bool_]

# Shares are floats: of what a node can do, so much is as good as nothing.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class Model:
    """A model: bytes that each of its replicas takes, and what all of them are asked.

    ``requests``: a second. ``seconds`` of a node of speed 1, and ``read_bytes`` of a disk: for one of them.
    ``replicas``: at least, each on a node of its own. ``labels``: which its nodes must have.
    """

    name: str
    need_bytes: int
    requests: float = 0.0
    seconds: float = 0.0
    read_bytes: float = 0.0
    replicas: int = 1
    labels: frozenset[str] = frozenset()


@dataclass(frozen=True)
class FleetNode:
    """A machine: bytes for models, how fast it computes (1: as where models were planned), what it reads.

    ``read_bytes``: a second. Speed and reading are what may be used of them.
    """

    name: str
    memory_bytes: int
    speed: float = 1.0
    read_bytes: float = float("inf")
    labels: frozenset[str] = frozenset()

    def takes(self, model: Model) -> bool:
        """Return whether a replica of ``model`` may be here, were nothing else."""
        return model.labels <= self.labels and model.need_bytes <= self.memory_bytes

    def served(self, model: Model) -> float:
        """Return how many requests a second to ``model`` it answers, were nothing else."""
        costs = ((model.seconds, self.speed), (model.read_bytes, self.read_bytes))
        return min((can / cost for cost, can in costs if cost), default=float("inf"))


@dataclass(frozen=True)
class Replica:
    """A model on a node, by their places in the problem, that answers ``requests`` a second."""

    model: int
    node: int
    requests: float


Placement = Sequence[Replica]


@dataclass(frozen=True)
class PlacementProblem:
    """Models and nodes; as arrays, what they need and have."""

    models: Sequence[Model]
    nodes: Sequence[FleetNode]

    @cached_property
    def needs(self) -> NDArray[np.int64]:
        """Bytes of a replica of each model."""
        return np.array([model.need_bytes for model in self.models], np.int64)

    @cached_property
    def costs(self) -> Floats:
        """[models, 2]: seconds and bytes read of a request."""
        costs = [(model.seconds, model.read_bytes) for model in self.models]
        return np.array(costs, np.float64).reshape(-1, 2)

    @cached_property
    def memory(self) -> NDArray[np.int64]:
        """Bytes of each node."""
        return np.array([node.memory_bytes for node in self.nodes], np.int64)

    @cached_property
    def rates(self) -> Floats:
        """[nodes, 2]: speed, and bytes read a second."""
        rates = [(node.speed, node.read_bytes) for node in self.nodes]
        return np.array(rates, np.float64).reshape(-1, 2)

    @cached_property
    def kinds(self) -> Sequence[FleetNode]:
        """Nodes that differ in more than their names, without these."""
        return list(dict.fromkeys(replace(node, name="") for node in self.nodes))

    @cached_property
    def kind_numbers(self) -> Counts:
        """Which of ``kinds`` each node is."""
        numbers = {kind: number for number, kind in enumerate(self.kinds)}
        return np.array([numbers[replace(node, name="")] for node in self.nodes], np.int64)

    @cached_property
    def allowed(self) -> Chosen:
        """[models, kinds]: whether a replica may be there, were nothing else."""
        found = [[kind.takes(model) for kind in self.kinds] for model in self.models]
        return np.array(found, np.bool_).reshape(len(self.models), len(self.kinds))


@dataclass(frozen=True)
class Wants:
    """Of some ``models``, by their places in the problem: requests a second and replicas to be placed."""

    models: Counts
    requests: Floats
    replicas: Counts

    @classmethod
    def of(cls, problem: PlacementProblem) -> "Wants":
        """Return what all models want."""
        return cls(
            np.arange(len(problem.models)),
            np.array([model.requests for model in problem.models], np.float64),
            np.array([model.replicas for model in problem.models], np.int64),
        )


def nodes_of(placement: Placement) -> set[int]:
    """Return the nodes that have a replica."""
    return {replica.node for replica in placement}


def faults(problem: PlacementProblem, placement: Placement) -> Iterator[str]:
    """Yield what is wrong with ``placement``; nothing where it is one of ``problem``."""
    per_model: dict[int, list[Replica]] = {number: [] for number in range(len(problem.models))}
    memory: Counter[int] = Counter()
    used = np.zeros_like(problem.rates)
    for replica in placement:
        model = problem.models[replica.model]
        per_model[replica.model].append(replica)
        memory[replica.node] += model.need_bytes
        used[replica.node] += problem.costs[replica.model] * replica.requests
        node = problem.nodes[replica.node]
        if not model.labels <= node.labels:
            yield f"model {model.name}: node {node.name} lacks a label"
        if replica.requests < 0:
            yield f"model {model.name}: a share of {replica.requests:g} requests"
    for number, node in enumerate(problem.nodes):
        if memory[number] > node.memory_bytes:
            yield f"node {node.name}: {memory[number]} bytes of {node.memory_bytes}"
        if (used[number] > problem.rates[number] * (1 + TOLERANCE)).any():
            yield f"node {node.name}: asked for more than it does"
    for number, replicas in per_model.items():
        yield from _model_faults(problem.models[number], replicas)


def _model_faults(model: Model, replicas: Sequence[Replica]) -> Iterator[str]:
    if len({replica.node for replica in replicas}) < len(replicas):
        yield f"model {model.name}: two replicas on one node"
    if len(replicas) < model.replicas:
        yield f"model {model.name}: {len(replicas)} replicas of {model.replicas}"
    answered = sum(replica.requests for replica in replicas)
    if abs(answered - model.requests) > TOLERANCE * max(model.requests, 1.0):
        yield f"model {model.name}: {answered:g} of {model.requests:g} requests a second"


def moves(before: Placement, after: Placement) -> Mapping[int, int]:
    """Return how many replicas of each model are loaded on a node that had none of it before."""
    known = {(replica.model, replica.node) for replica in before}
    return Counter(each.model for each in after if (each.model, each.node) not in known)
