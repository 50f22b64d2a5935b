"""Greedy exchange: from all layers whole to less and less memory, each step the best rate of exchange.

The largest buffer is where memory goes. Its largest edge is given fewer rows: the layers from its source to
its target, and one more on each side, make 16, 8, 4, 2 or 1 rows at a time. What saves most bytes for a
second is taken; where nothing saves any, the next largest buffer is looked at.
"""

from collections.abc import Iterator

from papers.applications.application import Held
from papers.applications.evaluate import Chromosome, Evaluated, Evaluator
from papers.applications.rows import ROWS, WHOLE

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
