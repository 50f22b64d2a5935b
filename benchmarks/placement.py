"""Placement by memory plans, in three figures: nodes, time, moves.

``python -m benchmarks.placement`` prints of random instances how many more nodes are used than the linear
program would; how long 1,000 models on 10,000 nodes take; and how many models move when every load changes
by up to 10 %. Needs SciPy (extra ``place``). ``--instances 100 --first 300`` takes a part of them.
"""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import replace

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


def _timed(work: Callable[[], Placement]) -> tuple[Placement, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def _checked(problem: PlacementProblem, placement: Placement) -> Placement:
    wrong = next(faults(problem, placement), None)
    if wrong is not None:
        raise SystemExit(f"no placement: {wrong}")
    return placement


def beside_the_bound(first: int, count: int) -> None:
    """Print how many nodes are used beyond the bound."""
    gaps, bounds = [], []
    for seed in range(first, first + count):
        problem = instance(seed)
        bound = math.ceil(relaxed(problem).bound - 1e-6)
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
    bound, used = math.ceil(relaxed(problem).bound - 1e-6), len(nodes_of(placement))
    print(
        f"{models:,} models on {nodes:,} nodes: {seconds:.1f} s, {len(placement):,} replicas on "
        f"{used:,} nodes, {(used / bound - 1) * 100:.2f} % above the bound",
        flush=True,
    )


def after_a_change(seed: int) -> None:
    """Print what moves when the loads of a placement change."""
    problem = instance(seed)
    before = place(problem)
    grown = [replace(model, requests=model.requests * 1.1) for model in problem.models]
    for name, other in (
        ("each by up to 10 %", changed(problem, seed, 0.1)),
        ("all by 10 % more", PlacementProblem(grown, problem.nodes)),
    ):
        after = _checked(other, place_again(other, before))
        moved = moves(before, after)
        print(
            f"loads change, {name} (seed {seed}): {len(moved)} of {len(grown)} models move "
            f"({len(moved) / len(grown) * 100:.1f} %), {sum(moved.values())} of {len(before)} replicas; "
            f"{len(nodes_of(before))} nodes before, {len(nodes_of(after))} after",
            flush=True,
        )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="which is the first")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--models", type=int, default=1_000)
    options = parser.parse_args()
    if options.instances:
        beside_the_bound(options.first, options.instances)
    if options.nodes:
        at_scale(options.nodes, options.models, 40.0)
        for seed in range(5):
            after_a_change(seed)


if __name__ == "__main__":
    main()
