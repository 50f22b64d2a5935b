"""A placement: on few nodes, or, where there is one already, with few moves; and why there is none."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cli.placement.filling import FilledNodes, fill
from cli.placement.problem import (
    Counts,
    FleetNode,
    Model,
    Placement,
    PlacementProblem,
    Replica,
)
from cli.placement.relaxation import divided, relaxed, searched
from models.errors import ModelError, printable

# No more nodes are filled to say how many are missing.
_MOST_MORE = 100_000
_MIB = 1 << 20


class PlacementError(ModelError):
    """There is no placement; the message names a model, what it wants, and what would do."""


def place(problem: PlacementProblem) -> Placement:
    """Return a placement of ``problem`` on few nodes.

    Where filling ends without one, all placements of a small problem are searched.

    Raises:
        PlacementError: a model fits nowhere, the nodes are too few, or no placement was found.
    """
    _check(problem)
    filling = FilledNodes(problem)
    if _complete(filling):
        return filling.placement
    found, is_none = searched(problem)
    if found is None:
        raise _not_placed(filling, is_none)
    return found


def place_again(problem: PlacementProblem, before: Placement) -> Placement:
    """Return a placement of ``problem`` that is like the one ``before``, of other loads, models or nodes.

    Replicas stay where they fit, and divide loads anew such that few more nodes would do; then few models
    have requests that no replica of theirs has time for. These get new ones. No node is emptied for the
    sake of fewer. Where there is no room for all, everything is placed anew.

    Raises:
        As ``place``.
    """
    _check(problem)
    kept = divided(problem, _fitting(problem, before))
    filling = FilledNodes(problem, kept)
    return filling.placement if _complete(filling) else place(problem)


def _fitting(problem: PlacementProblem, before: Placement) -> list[Replica]:
    """Return the replicas of ``before`` that fit."""
    free, found = problem.memory.copy(), []
    for each in before:
        need = problem.needs[each.model]
        if problem.allowed[each.model, problem.kind_numbers[each.node]] and need <= free[each.node]:
            free[each.node] -= need
            found.append(each)
    return found


def _complete(filling: FilledNodes) -> bool:
    """Place what is still wanted: on nodes that are used already, then on as few others as would do.

    Return whether there was room for all.
    """
    problem = filling.problem
    while _wants_after(filling, filling.used):
        wants, unused = filling.wants, filling.unused
        counts = np.bincount(problem.kind_numbers[unused], minlength=len(problem.kinds))
        relaxation = relaxed(problem, wants, counts)
        parts = zip(relaxation.counts, relaxation.wants, strict=True) if relaxation else ()
        for kind, (count, some) in enumerate(parts):
            fill(filling, unused[problem.kind_numbers[unused] == kind][:count], some)
        # Nodes that are left are too few, as the linear program counts: what fits has a place.
        if len(filling.unused) == len(unused):
            return not _wants_after(filling, unused)
    return True


def _wants_after(filling: FilledNodes, nodes: Counts) -> bool:
    """Place what fits on ``nodes``, those with most room first; return whether anything is wanted still."""
    if len(filling.wants.models):
        room = filling.free[nodes, :2] / np.maximum(
            filling.free[nodes, :2].max(axis=0, initial=0.0), 1e-9
        )
        fill(filling, nodes[np.argsort(-room.min(axis=1), kind="stable")], filling.wants)
    return len(filling.wants.models) > 0


def check_solver() -> None:
    """Check that placement has its solver.

    Raises:
        PlacementError: it has not.
    """
    try:
        import scipy.optimize  # noqa: F401
    except ImportError as exc:
        raise PlacementError("placement needs SciPy: pip install scipy (the extra place)") from exc


def _check(problem: PlacementProblem) -> None:
    """Check that each model alone could be placed.

    Raises:
        PlacementError: one could not.
    """
    if not problem.nodes:
        raise PlacementError("no nodes: one would do for a start")
    kinds: list[list[FleetNode]] = [[] for _ in problem.kinds]
    for node, number in zip(problem.nodes, problem.kind_numbers, strict=True):
        kinds[number].append(node)
    for model in problem.models:
        _check_alone(model, kinds)


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
            f"{printable(largest.name)}, has {_size_of(largest.memory_bytes)} for models beside the server "
            f"itself; with {_size_of(model.need_bytes - largest.memory_bytes)} more it would"
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


def _not_placed(filling: FilledNodes, is_none: bool) -> PlacementError:
    """Return what is said where no placement was found: how many more nodes would do.

    ``is_none``: there is none for sure.
    """
    problem, wants = filling.problem, filling.wants
    models = [problem.models[model] for model in wants.models]
    best = max(
        problem.kinds,
        key=lambda kind: (sum(map(kind.takes, models)), kind.memory_bytes, kind.speed),
    )
    names = ", ".join(printable(model.name) for model in models[:5])
    few = "nodes are too few" if is_none else "nodes: no placement was found"
    said = f"{len(problem.nodes)} {few}: no room for {names}"
    named = next(node for node in problem.nodes if replace(node, name="") == best)
    if not all(map(best.takes, models)):
        return PlacementError(said)
    # So many do whatever filling makes of them: each replica on one of its own.
    alone = [
        math.ceil(each / best.served(model))
        for model, each in zip(models, wants.requests, strict=True)
    ]
    needed = int(np.maximum(alone, wants.replicas).sum())
    if needed <= _MOST_MORE:
        more = PlacementProblem(problem.models, [*problem.nodes, *[best] * needed])
        extended = FilledNodes(more, filling.placement)
        if _complete(extended):
            needed = sum(node >= len(problem.nodes) for node in extended.used)
    return PlacementError(f"{said}; {needed} more like {printable(named.name)} would do")


def _listed(labels: frozenset[str]) -> str:
    return "the label" + "s" * (len(labels) > 1) + " " + printable(", ".join(sorted(labels)))


def _size_of(n_bytes: int) -> str:
    return f"{math.ceil(n_bytes / _MIB * 10) / 10:g} MiB"
