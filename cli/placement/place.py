"""A placement: on few nodes, or, where there is one already, with few moves; and why there is none."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cli.placement.greedy import (
    MANNERS,
    Chosen,
    FilledNodes,
    Manner,
    fill,
    order_of,
    pack,
    stretch,
)
from cli.placement.problem import (
    FleetNode,
    Model,
    Placement,
    PlacementProblem,
    Replica,
    moves,
    nodes_of,
)
from cli.placement.relaxation import Relaxation, is_there, kind_of, relaxed
from models.errors import ModelError, printable

# How many times the nodes of the linear program are tried: what is whole does not fill all of them.
_FACTORS = (1.0, 1.01, 1.02, 1.03, 1.05)
_MIB = 1 << 20


class PlacementError(ModelError):
    """There is no placement; the message names a model, what it wants, and what would do."""


def place(problem: PlacementProblem) -> Placement:
    """Return a placement of ``problem`` on few nodes.

    With SciPy what goes to which kind of node is what the linear program says, else what is free decides.

    Raises:
        PlacementError: a model fits nowhere, or the nodes are too few.
    """
    _check(problem)
    placement: list[Replica] | None = None
    relaxation = relaxed(problem) if is_there() else None
    if relaxation is not None and math.isinf(relaxation.bound):
        raise _too_few(problem)
    least = 0.0 if relaxation is None else relaxation.bound
    for manner in MANNERS:
        for factor in _FACTORS:
            filling, nodes = _begun(problem, relaxation, factor, manner)
            before = int(nodes.sum())
            left = [model for model in order_of(problem, nodes) if filling.wants(model)]
            left = _open(filling, pack(filling, left, nodes, manner), nodes, manner)
            if not left and (
                placement is None or len(nodes_of(filling.placement)) < len(nodes_of(placement))
            ):
                placement = filling.placement
            if not left and int(nodes.sum()) == before:
                break  # more nodes would only be more
        if (
            placement is not None
            and len(nodes_of(placement)) <= math.ceil(least - 1e-6) * _FACTORS[1]
        ):
            break
    if placement is None:
        raise _too_few(problem)
    return placement


def _begun(
    problem: PlacementProblem, relaxation: Relaxation | None, factor: float, manner: Manner
) -> tuple[FilledNodes, Chosen]:
    """Return nodes as they are filled, kind by kind, and which are used."""
    nodes = np.zeros(len(problem.nodes), np.bool_)
    if relaxation is None:
        nodes[_cover(problem, factor)] = True
        return FilledNodes(problem), nodes
    kept: list[Replica] = []
    of_kind: dict[FleetNode, list[int]] = {}
    for number, node in enumerate(problem.nodes):
        of_kind.setdefault(kind_of(node), []).append(number)
    replicas = _whole(problem, relaxation)
    for number, kind in enumerate(relaxation.kinds):
        count = math.ceil(relaxation.counts[number] * factor - 1e-6)
        some: list[int] = np.flatnonzero(replicas[:, number]).tolist()
        places = of_kind[kind][: max(count, 1)]
        if some:
            models = [
                replace(
                    problem.models[model],
                    requests=float(relaxation.requests[model, number]),
                    replicas=int(replicas[model, number]),
                )
                for model in some
            ]
            part = FilledNodes(PlacementProblem(models, [problem.nodes[place] for place in places]))
            every = np.ones(len(places), np.bool_)
            pack(part, order_of(part.problem, every), every, manner)
            kept += [
                Replica(some[each.model], places[each.node], each.requests)
                for each in part.placement
            ]
            nodes[places] = True
    return FilledNodes(problem, kept), nodes


def _whole(
    problem: PlacementProblem, relaxation: Relaxation
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return how many replicas of each model each kind has at least: one where it has requests."""
    counts = np.zeros(relaxation.replicas.shape, np.int64)
    for number, model in enumerate(problem.models):
        replicas, requests = relaxation.replicas[number], relaxation.requests[number]
        uses = (replicas > 1e-6) & ((requests > 1e-6 * model.requests) | (model.requests == 0))
        if not uses.any():
            uses = replicas == replicas.max()
        counts[number] = uses
        while counts[number].sum() < model.replicas:
            counts[number, int((replicas - counts[number]).argmax())] += 1
    return counts


def _cover(problem: PlacementProblem, factor: float) -> list[int]:
    """Return few nodes that have ``factor`` times what all models take, each by what is still short."""
    least = np.array([model.replicas for model in problem.models])
    wanted = factor * np.array([(problem.needs * least).sum(), *problem.loads.sum(axis=0)])
    parts = np.flatnonzero(wanted)
    shares = np.column_stack([problem.memory, problem.rates])[:, parts] / wanted[parts]
    left, free = np.ones(len(parts)), np.ones(len(shares), np.bool_)
    chosen = []
    while (left > 1e-9).any() and free.any():
        short = np.maximum(left, 0.0)
        values = np.where(free, np.minimum(shares, short).sum(axis=1), -1.0)
        chosen.append(int(values.argmax()))
        free[chosen[-1]] = False
        left = left - shares[chosen[-1]]
    return chosen


def _open(filling: FilledNodes, left: list[int], nodes: Chosen, manner: Manner) -> list[int]:
    """Use more ``nodes``, as many as are needed at least, again and again; return what is ``left``."""
    problem = filling.problem
    capacity = np.column_stack([problem.memory, problem.rates])
    while left:
        takes = filling.takes(left[0]) & ~nodes
        if not takes.any():
            return left
        wanted = np.zeros(3)
        for model in left:
            wanted[0] += int(problem.needs[model]) * max(filling.missing(model), 1)
            wanted[1:] += problem.costs[model] * filling.requests[model]
        parts = wanted > 0
        shares = capacity[:, parts] / wanted[parts]
        # By what it has least of, beside what is wanted.
        values = np.where(takes, np.minimum(shares, 1.0).min(axis=1), -1.0)
        best = int(values.argmax())
        count = min(max(int(1 / shares[best].min()), 1), int(takes.sum()))
        nodes[np.argpartition(-values, count - 1)[:count] if count > 1 else best] = True
        left = fill(filling, left, nodes, manner)
    return []


def place_again(problem: PlacementProblem, before: Placement) -> Placement:
    """Return a placement of ``problem`` that is like the one ``before``, of other loads, models or nodes.

    Replicas stay where they fit; where a node is asked for more than it does, the largest of its loads go
    first to other replicas of their models, then to new ones. No node is emptied for the sake of fewer.

    Raises:
        As ``place``.
    """
    _check(problem)
    placements = []
    for manner in MANNERS:
        filling = _kept(problem, before)
        nodes = np.zeros(len(problem.nodes), np.bool_)
        nodes[list({node for shares in filling.shares for node in shares})] = True
        left = [model for model in order_of(problem, np.ones_like(nodes)) if filling.wants(model)]
        if not _open(filling, pack(filling, left, nodes, manner), nodes, manner):
            placements.append(filling.placement)
    if not placements:
        raise _too_few(problem)
    return min(placements, key=lambda each: (len(moves(before, each)), len(nodes_of(each))))


def _kept(problem: PlacementProblem, before: Placement) -> FilledNodes:
    """Return nodes with what fits of ``before``; replicas answer their shares as far as there is time."""
    filling, asked = FilledNodes(problem), np.zeros(len(problem.models))
    for each in before:
        asked[each.model] += each.requests
    there: dict[int, list[tuple[int, float]]] = {}
    for each in before:
        model = problem.models[each.model]
        fits = filling.free_bytes[each.node] >= model.need_bytes
        if fits and model.labels <= problem.nodes[each.node].labels:
            filling.put(each.model, each.node, 0.0)
            share = each.requests / asked[each.model] if asked[each.model] else 0.0
            there.setdefault(each.node, []).append((each.model, share * model.requests))
    for node, loads in there.items():
        for number, wanted in sorted(loads, key=lambda load: _size(problem, node, *load)):
            room = max(float(filling.room(number, filling.free[[node]])[0]), 0.0)
            filling.put(number, node, min(wanted, room))
    for number in range(len(problem.models)):
        stretch(filling, number)
        _drop_idle(filling, number)
    return filling


def _size(problem: PlacementProblem, node: int, model: int, requests: float) -> float:
    """Return the shares of ``node`` that so many requests take."""
    rates = problem.rates[node]
    return float((problem.costs[model] * requests / rates).max())


def _drop_idle(filling: FilledNodes, model: int) -> None:
    shares = filling.shares[model]
    for node in [node for node, requests in shares.items() if requests <= 0]:
        if len(shares) > filling.problem.models[model].replicas:
            filling.take(model, node)


def _check(problem: PlacementProblem) -> None:
    """Check that each model alone could be placed.

    Raises:
        PlacementError: one could not.
    """
    kinds: dict[FleetNode, list[FleetNode]] = {}
    for node in problem.nodes:
        kinds.setdefault(kind_of(node), []).append(node)
    for model in problem.models:
        _check_alone(model, list(kinds.values()))


def _check_alone(model: Model, kinds: Sequence[Sequence[FleetNode]]) -> None:
    """Check ``model`` against nodes, those that are as good as each other in one list."""
    named = f"model {printable(model.name)}"
    labelled = [nodes for nodes in kinds if model.labels <= nodes[0].labels]
    if not labelled:
        raise PlacementError(f"{named}: no node has {_listed(model.labels)}; one that has would do")
    homes = [nodes for nodes in labelled if nodes[0].takes(model)]
    if not homes:
        largest = max((nodes[0] for nodes in labelled), key=lambda node: node.memory_bytes)
        raise PlacementError(
            f"{named}: no node holds it: it needs {_size_of(model.need_bytes)}, and the largest, "
            f"{printable(largest.name)}, has {_size_of(largest.memory_bytes)} for models; a node with "
            f"{_size_of(model.need_bytes)} would"
        )
    count = sum(map(len, homes))
    if count < model.replicas:
        raise PlacementError(
            f"{named}: {model.replicas} replicas, each on a node of its own, and {count} nodes "
            f"hold it; {model.replicas - count} more would do"
        )
    served = sum(len(nodes) * nodes[0].served(model) for nodes in homes)
    if served < model.requests:
        best = max((nodes[0] for nodes in homes), key=lambda node: node.served(model))
        more = math.ceil((model.requests - served) / best.served(model))
        raise PlacementError(
            f"{named}: {model.requests:g} requests a second, and all {count} nodes that hold it "
            f"answer {served:.4g}; {more} more like {printable(best.name)} would do"
        )


def _too_few(problem: PlacementProblem) -> PlacementError:
    """Return the error for too few nodes, with how many more would be enough."""
    best = max(problem.nodes, key=lambda node: (node.memory_bytes, node.speed))
    for more in (1 << power for power in range(20)):
        extended = PlacementProblem(problem.models, [*problem.nodes, *[best] * more])
        every = np.ones(len(extended.nodes), np.bool_)
        every[len(problem.nodes) :] = False
        filling = FilledNodes(extended)
        left = pack(filling, order_of(extended, every), every, MANNERS[0])
        names = ", ".join(printable(problem.models[model].name) for model in left[:5])
        if not _open(filling, left, every, MANNERS[0]):
            count = int(every[len(problem.nodes) :].sum())
            return PlacementError(
                f"{len(problem.nodes)} nodes are too few: no room for {names}; {count} more like "
                f"{printable(best.name)} would do"
            )
    return PlacementError(f"{len(problem.nodes)} nodes are too few")


def _listed(labels: frozenset[str]) -> str:
    return "the label" + "s" * (len(labels) > 1) + " " + printable(", ".join(sorted(labels)))


def _size_of(n_bytes: int) -> str:
    return f"{math.ceil(n_bytes / _MIB * 10) / 10:g} MiB"
