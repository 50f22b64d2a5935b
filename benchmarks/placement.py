"""Placement by memory plans, in three figures: nodes, time, moves.

``python -m benchmarks.placement`` prints of random instances how many more nodes are used than the linear
program would; how long 1,000 models on 10,000 nodes take; and, when loads change by 10 %, how many models
move and how many more nodes are used than the bound of the new loads. Needs SciPy (extra ``place``).
``--instances 1000`` and ``--changes 200`` take more problems, ``--first 300`` others.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from cli.placement.place import place, place_again
from cli.placement.problem import (
    FleetNode,
    Model,
    Placement,
    PlacementProblem,
    faults,
    moves,
    nodes_of,
)
from cli.placement.relaxation import relaxed

_MIB = 1 << 20
# What may be used of a node's time.
_BUSY = 0.8
_MEMORY_MIB = (1024, 2048, 4096, 8192)
_SPEEDS = (0.5, 1.0, 2.0, 4.0)
_READS = (math.inf, 1e9, 2.5e9)
_ALLOWED = 1.05

#: What becomes of a problem, by a seed.
Change = Callable[[PlacementProblem, int], PlacementProblem]


def instance(
    seed: int, models: int | None = None, nodes: int = 2000, load: float = 3.0
) -> PlacementProblem:
    """Return a random problem: up to three kinds of node, 150 to 400 models.

    Models take 4 to 256 MiB, of which nodes have 1 to 8 GiB, and 2 to 200 ms; half of them stream.
    ``load``: what the largest take of a node of speed 1.
    """
    random = np.random.default_rng(seed)
    kinds = [
        FleetNode(
            "",
            int(random.choice(_MEMORY_MIB)) * _MIB,
            _BUSY * float(random.choice(_SPEEDS)),
            float(random.choice(_READS)),
        )
        for _ in range(int(random.integers(1, 4)))
    ]
    count = int(random.integers(150, 400)) if models is None else models
    return PlacementProblem(
        [_model(random, f"model-{number}", load) for number in range(count)],
        [replace(kinds[number % len(kinds)], name=f"node-{number}") for number in range(nodes)],
    )


def _model(random: np.random.Generator, name: str, load: float) -> Model:
    def among(least: float, most: float) -> float:
        return float(np.exp(random.uniform(np.log(least), np.log(most))))

    need, seconds = int(among(4, 256) * _MIB), among(0.002, 0.2)
    requests = among(0.1, max(load / seconds, 0.2))
    streamed = need * float(random.uniform(0, 1)) * float(random.integers(0, 2))
    return Model(name, need, requests, seconds, streamed, int(random.choice((1, 1, 1, 2, 3))))


def changed(problem: PlacementProblem, seed: int, by: float) -> PlacementProblem:
    """Return the same with every load changed by up to ``by``, up or down."""
    factors = np.random.default_rng(seed).uniform(1 - by, 1 + by, len(problem.models))
    models = [
        replace(model, requests=model.requests * float(factor))
        for model, factor in zip(problem.models, factors, strict=True)
    ]
    return PlacementProblem(models, problem.nodes)


def grown(problem: PlacementProblem, _seed: int) -> PlacementProblem:
    """Return the same with every load 10 % more."""
    models = [replace(model, requests=model.requests * 1.1) for model in problem.models]
    return PlacementProblem(models, problem.nodes)


def _timed(work: Callable[[], Placement]) -> tuple[Placement, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def _checked(problem: PlacementProblem, placement: Placement) -> Placement:
    wrong = next(faults(problem, placement), None)
    if wrong is not None:
        raise SystemExit(f"no placement: {wrong}")
    return placement


def bound_of(problem: PlacementProblem) -> int:
    """Return the least number of nodes by the linear program of divisible nodes.

    Raises:
        SystemExit: the nodes are too few.
    """
    found = relaxed(problem, whole_nodes=False)
    if found is None:
        raise SystemExit("the nodes are too few")
    return math.ceil(found.bound - 1e-6)


def beside_the_bound(first: int, count: int) -> None:
    """Print how many nodes are used beyond the bound."""
    gaps, bounds = [], []
    for seed in range(first, first + count):
        problem = instance(seed)
        bound = bound_of(problem)
        used = len(nodes_of(_checked(problem, place(problem))))
        gaps.append(used / bound)
        bounds.append(bound)
    above = [gap for gap in gaps if gap > _ALLOWED]
    print(
        f"instances {first} to {first + count - 1}, bounds of {min(bounds)} to {max(bounds)} nodes: "
        f"{(sum(gaps) / count - 1) * 100:.2f} % more on average, {(max(gaps) - 1) * 100:.1f} % at most, "
        f"{len(above)} above 5 %",
        flush=True,
    )


def at_scale(nodes: int, models: int, load: float) -> None:
    """Print how long a large placement takes, and what moves when its loads change."""
    problem = instance(7, models, nodes, load)
    placement, seconds = _timed(lambda: place(problem))
    _checked(problem, placement)
    bound, used = bound_of(problem), len(nodes_of(placement))
    print(
        f"{models:,} models on {nodes:,} nodes: {seconds:.1f} s, {len(placement):,} replicas on "
        f"{used:,} nodes, {(used / bound - 1) * 100:.2f} % above the bound",
        flush=True,
    )


def after_a_change(name: str, first: int, count: int, change: Change) -> None:
    """Print what moves when the loads of placements change, and how many nodes are used then."""
    moved, gaps = [], []
    for seed in range(first, first + count):
        problem = instance(seed)
        before, other = place(problem), change(problem, seed)
        after = _checked(other, place_again(other, before))
        moved.append(len(moves(before, after)) / len(problem.models))
        gaps.append(len(nodes_of(after)) / bound_of(other) - 1)
    many, far = sum(each > 0.15 for each in moved), sum(gap > _ALLOWED - 1 for gap in gaps)
    print(
        f"loads change, {name}, instances {first} to {first + count - 1}: models that move "
        f"{_spread(moved)}, {many} above 15 %; nodes above the bound of the new loads {_spread(gaps)}, "
        f"{far} above 5 %",
        flush=True,
    )


def _spread(values: Sequence[float]) -> str:
    half, most = np.quantile(values, (0.5, 0.95)) * 100
    return f"{half:.1f} % (median), {most:.1f} % (of 95 %), {max(values) * 100:.1f} % (all)"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=50)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--loads", type=float, nargs="*", default=[40.0, 200.0])
    parser.add_argument("--first", type=int, default=0, help="which is the first")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--models", type=int, default=1_000)
    options = parser.parse_args()
    if options.instances:
        beside_the_bound(options.first, options.instances)
    for load in options.loads:
        at_scale(options.nodes, options.models, load)
    if options.changes:
        after_a_change(
            "each by up to 10 %", options.first, options.changes, partial(changed, by=0.1)
        )
        after_a_change("all by 10 % more", options.first, options.changes, grown)


if __name__ == "__main__":
    main()
