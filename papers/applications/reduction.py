"""Buffers reduction (seed 000, Algorithm 2): which layers process data by parts, by NSGA-II.

Objectives are the memory of the application and the throughput of each CNN. A random start would cover a
small part of their range: so the first population are the extremes and the greedy exchange between them
(exchange.py). Whatever was evaluated may be on the front, so it never loses what the start had.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from papers.applications.application import ApplicationError, Held
from papers.applications.cost import Chromosome, Evaluated, Evaluator
from papers.applications.schedule import ROWS, WHOLE

# Greedy exchange: from all layers whole to less and less memory, each step the best rate of exchange.
#
# The largest buffer is where memory goes. Its largest edge is given fewer rows: the layers from its
# source to its target, and one more on each side, make 16, 8, 4, 2 or 1 rows at a time. What saves most
# bytes for a second is taken; where nothing saves any, the next largest buffer is looked at.

_MOST_STEPS = 80
_LOOKED_AT = 6


def exchange_path(
    evaluator: Evaluator, most_steps: int = _MOST_STEPS
) -> list[tuple[Chromosome, Evaluated]]:
    """Return chromosomes from the whole on, each with less memory than the one before."""
    genes = evaluator.all_whole()
    path = [(genes, evaluator.evaluated(genes))]
    while len(path) <= most_steps:
        better = _exchange(evaluator, *path[-1])
        if better is None:
            break
        path.append(better)
    return path


def _exchange(
    evaluator: Evaluator, genes: Chromosome, now: Evaluated
) -> tuple[Chromosome, Evaluated] | None:
    """Return the best exchange of one of the largest buffers; None: none saves anything."""
    buffers = sorted(evaluator.buffers(genes), key=lambda item: -item.size)
    for buffer in buffers[:_LOOKED_AT]:
        sizes = evaluator.sizes(genes)
        largest = max(buffer.edges, key=lambda held: sizes[held])
        found = [
            (other, evaluated)
            for other in dict.fromkeys(_moves(evaluator, genes, largest))
            if (evaluated := evaluator.evaluated(other)).memory_bytes < now.memory_bytes
        ]
        if found:
            return max(found, key=lambda item: _rate(now, item[1]))
    return None


def _rate(now: Evaluated, then: Evaluated) -> float:
    """Return bytes saved for each second that frames take longer, all CNNs together."""
    longer = sum(
        1 / new - 1 / old for new, old in zip(then.throughputs, now.throughputs, strict=True)
    )
    return (now.memory_bytes - then.memory_bytes) / max(longer, 1e-9)


def _moves(evaluator: Evaluator, genes: Chromosome, held: Held) -> Iterator[Chromosome]:
    """Yield chromosomes in which the layers around an edge make fewer rows at a time."""
    own = evaluator.gene_range(held.cnn)
    edge = evaluator.application.edge(held)
    for wider in (0, 1):
        start = max(own.start + edge.source - wider, own.start)
        end = min(own.start + edge.target + wider + 1, own.stop)
        for rows in ROWS[1:]:
            yield tuple(
                rows
                if start <= place < end
                and evaluator.divisible[place]
                and (gene == WHOLE or rows < gene)
                else gene
                for place, gene in enumerate(genes)
            )


@dataclass(frozen=True, slots=True)
class GeneticSettings:
    """GA_par. ``mutation``: the chance that a child has one gene changed."""

    population: int = 64
    generations: int = 40
    seed: int = 0
    mutation: float = 0.9


@dataclass(frozen=True, slots=True)
class Constraints:
    """M^c, bytes, and T^c, frames a second of each CNN; None: there is none."""

    memory_bytes: int | None = None
    throughputs: tuple[float, ...] | None = None

    def excess(self, point: Evaluated) -> float:
        """Return the largest ratio by which ``point`` misses a constraint; at most 1: it meets all."""
        ratios = [0.0]
        if self.memory_bytes is not None:
            ratios.append(point.memory_bytes / max(self.memory_bytes, 1))
        for wanted, reached in zip(self.throughputs or (), point.throughputs, strict=False):
            ratios.append(wanted / reached)
        return max(ratios)

    def met(self, point: Evaluated) -> bool:
        """Return whether ``point`` keeps all."""
        fits = self.memory_bytes is None or point.memory_bytes <= self.memory_bytes
        pairs = zip(self.throughputs or (), point.throughputs, strict=False)
        return fits and all(reached >= wanted for wanted, reached in pairs)


@dataclass(frozen=True, slots=True)
class Solution:
    """A chromosome and its costs."""

    genes: Chromosome
    point: Evaluated


def reduce_buffers(
    evaluator: Evaluator, constraints: Constraints, settings: GeneticSettings | None = None
) -> tuple[Solution, list[Solution]]:
    """Return the solution of Algorithm 2 and the front that it was taken from, by rising memory.

    Where buffer reuse alone is enough, it is the solution (lines 1 to 5); else the one of least memory that
    meets the constraints (line 14).

    Raises:
        ApplicationError: none meets them; the message has the nearest one. Or pymoo is not installed.
    """
    whole = Solution(evaluator.all_whole(), evaluator.evaluated(evaluator.all_whole()))
    if constraints.memory_bytes is not None and constraints.met(whole.point):
        return whole, [whole]
    solutions = front(evaluator, settings or GeneticSettings())
    meeting = [item for item in solutions if constraints.met(item.point)]
    if not meeting:
        raise ApplicationError(_nearest(evaluator, constraints, solutions))
    return min(meeting, key=lambda item: item.point.memory_bytes), solutions


def _nearest(evaluator: Evaluator, constraints: Constraints, found: Sequence[Solution]) -> str:
    application = evaluator.application
    wanted = []
    if constraints.memory_bytes is not None:
        wanted.append(f"at most {constraints.memory_bytes:,} bytes")
    wanted += [
        f"{cnn.name} at {least:g} frames/s"
        for cnn, least in zip(application.cnns, constraints.throughputs or (), strict=False)
        if least
    ]
    point = min(found, key=lambda item: constraints.excess(item.point)).point
    reached = ", ".join(
        f"{cnn.name} at {rate:.4g} frames/s"
        for cnn, rate in zip(application.cnns, point.throughputs, strict=True)
    )
    return (
        f"{application.name}: no plan reaches {' with '.join(wanted)}: the nearest that was found takes "
        f"{point.memory_bytes:,} bytes with {reached}"
    )


def start_population(evaluator: Evaluator) -> list[Chromosome]:
    """Return the extremes and the greedy exchange between them."""
    extremes = [evaluator.all_whole(), *(evaluator.all_by(rows) for rows in ROWS[1:])]
    return list(dict.fromkeys([*extremes, *(genes for genes, _ in exchange_path(evaluator))]))


def front(evaluator: Evaluator, settings: GeneticSettings) -> list[Solution]:
    """Return what no other evaluated chromosome beats, by rising memory; the same for the same seed.

    Raises:
        ApplicationError: pymoo is not installed.
    """
    archive = _Archive(evaluator)
    start = start_population(evaluator)
    _evolve(archive, start, settings)
    return unbeaten([Solution(genes, point) for genes, point in archive.known.items()])


def unbeaten(solutions: Sequence[Solution]) -> list[Solution]:
    """Return those that none beats in all objectives, by rising memory, of equal ones the first."""
    distinct: dict[tuple[float, ...], Solution] = {}
    for item in solutions:
        distinct.setdefault(item.point.objectives, item)
    points = np.array(list(distinct))
    kept = [
        item
        for item, point in zip(distinct.values(), points, strict=True)
        if not ((points <= point).all(axis=1) & (points < point).any(axis=1)).any()
    ]
    return sorted(kept, key=lambda item: item.point.objectives)


class _Archive:
    """Everything that was evaluated, once."""

    def __init__(self, evaluator: Evaluator) -> None:
        self.evaluator = evaluator
        self.known: dict[Chromosome, Evaluated] = {}

    def objectives(self, rows: NDArray[np.int_]) -> NDArray[np.float64]:
        """Return the objectives of chromosomes, one a row."""
        return np.array([self._of(tuple(map(int, row))).objectives for row in rows])

    def _of(self, genes: Chromosome) -> Evaluated:
        if genes not in self.known:
            self.known[genes] = self.evaluator.evaluated(genes)
        return self.known[genes]

    @cached_property
    def changeable(self) -> list[int]:
        """The genes that make a difference."""
        return [place for place, can in enumerate(self.evaluator.divisible) if can]


def _evolve(archive: _Archive, start: Sequence[Chromosome], settings: GeneticSettings) -> None:
    """Run NSGA-II from ``start``: two-point crossover, one gene mutated; all goes to ``archive``."""
    try:
        from pymoo.algorithms.moo.nsga2 import NSGA2
        from pymoo.core.mutation import Mutation
        from pymoo.core.problem import Problem
        from pymoo.operators.crossover.pntx import TwoPointCrossover
        from pymoo.optimize import minimize
    except ImportError as exc:
        raise ApplicationError(
            "the search of Algorithm 2 needs pymoo: install the extra, pip install '.[search]'"
        ) from exc

    class _Chromosomes(Problem):  # type: ignore[misc]
        def __init__(self) -> None:
            n_obj = 1 + len(archive.evaluator.application.cnns)
            super().__init__(n_var=archive.evaluator.length, n_obj=n_obj, vtype=int)

        def _evaluate(self, x: Any, out: dict[str, Any], *_: Any, **__: Any) -> None:
            out["F"] = archive.objectives(x)

    class _OneGene(Mutation):  # type: ignore[misc]
        def _do(self, _: Any, x: Any, *__: Any, random_state: Any = None, **___: Any) -> Any:
            return _mutated(archive, x, random_state)

    algorithm = NSGA2(
        pop_size=settings.population,
        sampling=np.array(_filled(archive, start, settings)),
        crossover=TwoPointCrossover(),
        mutation=_OneGene(prob=settings.mutation),
    )
    minimize(_Chromosomes(), algorithm, ("n_gen", settings.generations), seed=settings.seed)


def _filled(
    archive: _Archive, start: Sequence[Chromosome], settings: GeneticSettings
) -> list[Chromosome]:
    """Return the first population: ``start``, and changed ones of these where they are too few."""
    random = np.random.default_rng(settings.seed)
    missing = islice(cycle(start), max(settings.population - len(start), 0))
    changed = (_mutated(archive, np.array([genes]), random)[0] for genes in missing)
    return [*start, *(tuple(map(int, genes)) for genes in changed)]


def _mutated(archive: _Archive, x: NDArray[Any], random: Any) -> NDArray[Any]:
    """Return chromosomes with one gene set to other rows."""
    changed = x.copy()
    if not archive.changeable:
        return changed
    for row in changed:
        row[int(random.choice(archive.changeable))] = int(random.choice(ROWS))
    return changed
