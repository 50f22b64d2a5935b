"""What a chromosome costs: EvalMemory and EvalThroughput of seed 000's Algorithm 2.

A chromosome has a gene for each layer of each CNN: how many rows it makes at a time (schedule.py). One
evaluation takes a millisecond or two on a network of a few hundred edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from papers.applications.application import Application, CnnBuffer, Held, Schedule
from papers.applications.parts import PartitionParts
from papers.applications.reuse import Lives, reuse
from papers.applications.schedule import ROWS, WHOLE, phases
from papers.cnn.layers import CnnLayer

Chromosome = tuple[int, ...]

# Of a core that was not measured: only proportions count.
_SECONDS_AN_ELEMENT = 1e-9
_SECONDS_A_PHASE = 5e-6


class Times(Protocol):
    """How long layers take."""

    def seconds(self, cnn: int, layer: int, rows: int) -> float:
        """Return what all phases of a layer of so many rows take together; ``rows`` 0: one phase."""


@dataclass(frozen=True)
class Estimated:
    """Times of layers as ``application`` gives them, else by their elements; each phase costs a launch."""

    application: Application

    def seconds(self, cnn: int, layer: int, rows: int) -> float:
        item: CnnLayer = self.application.cnns[cnn].layers[layer]
        whole = item.seconds or item.output.elements * _SECONDS_AN_ELEMENT
        return whole + _SECONDS_A_PHASE * phases(item, rows)


@dataclass(frozen=True)
class Evaluated:
    """The costs of a chromosome: bytes (Eq. 1), and frames a second of each CNN."""

    memory_bytes: int
    throughputs: tuple[float, ...]

    @property
    def objectives(self) -> tuple[float, ...]:
        """What is minimised: memory, and throughputs with the sign changed."""
        return (float(self.memory_bytes), *(-each for each in self.throughputs))


class Evaluator:
    """Evaluates chromosomes of ``application``, and remembers what it found of parts of them."""

    def __init__(self, application: Application, times: Times | None = None) -> None:
        self.application = application
        self._times = times or Estimated(application)
        self._parts = [
            PartitionParts(application.cnns[p.cnn], p.layers) for p in application.partitions
        ]
        counts = [len(cnn.layers) for cnn in application.cnns]
        self._firsts = firsts = [sum(counts[:number]) for number in range(len(counts))]
        self._genes = [
            [firsts[p.cnn] + layer for layer in p.layers] for p in application.partitions
        ]
        self._lives = Lives(application)
        self._whole = [application.elements(held) for held in application.held]
        self._rows = [application.row_elements(held) for held in application.held]
        self._index = self._inner_edges()

    @property
    def length(self) -> int:
        """Genes of a chromosome."""
        return sum(len(cnn.layers) for cnn in self.application.cnns)

    def gene_range(self, cnn: int) -> range:
        """Return the genes of a CNN's layers."""
        return range(self._firsts[cnn], self._firsts[cnn] + len(self.application.cnns[cnn].layers))

    @cached_property
    def divisible(self) -> list[bool]:
        """For each gene whether its layer has more than one row."""
        layers = [layer for cnn in self.application.cnns for layer in cnn.layers]
        return [layer.output.height > 1 for layer in layers]

    def _inner_edges(self) -> list[dict[tuple[int, int], int]]:
        """Return, for each partition, which of what is held is the edge between two places of it."""
        found: list[dict[tuple[int, int], int]] = [{} for _ in self._parts]
        application = self.application
        for number, held in enumerate(application.held):
            edge = application.edge(held)
            start, _ = application.first_step(held.cnn, edge.source)
            end, _ = application.first_step(held.cnn, edge.target)
            if start == end:
                order = self._parts[start].order
                found[start][order.index(edge.source), order.index(edge.target)] = number
        return found

    def memory_bytes(self, genes: Sequence[int]) -> int:
        """EvalMemory, bytes."""
        return self.application.memory(self.buffers(genes))

    def throughputs(self, genes: Sequence[int]) -> tuple[float, ...]:
        """EvalThroughput of each CNN, frames a second: of its slowest partition where it is pipelined."""
        return tuple(
            1 / (max(own) if self.application.is_pipelined(number) else sum(own))
            for number, own in enumerate(self._partition_seconds(genes))
        )

    def sequential_throughputs(self, genes: Sequence[int]) -> tuple[float, ...]:
        """Return the same where partitions run one after the other."""
        return tuple(1 / sum(own) for own in self._partition_seconds(genes))

    def _partition_seconds(self, genes: Sequence[int]) -> list[list[float]]:
        """Return, for each CNN, what its partitions take."""
        tables = self._tables
        found: list[list[float]] = [[] for _ in self.application.cnns]
        for partition, own in zip(self.application.partitions, self._genes, strict=True):
            found[partition.cnn].append(sum([tables[gene][genes[gene]] for gene in own]))
        return found

    @cached_property
    def _tables(self) -> list[dict[int, float]]:
        return [
            {rows: self._times.seconds(number, layer, rows) for rows in ROWS}
            for number, cnn in enumerate(self.application.cnns)
            for layer in range(len(cnn.layers))
        ]

    def evaluated(self, genes: Sequence[int]) -> Evaluated:
        """Return memory and throughputs."""
        return Evaluated(self.memory_bytes(genes), self.throughputs(genes))

    def buffers(self, genes: Sequence[int]) -> tuple[CnnBuffer, ...]:
        """Return B^reduced (Table 9)."""
        sizes, steps = self._sizes(genes)
        return reuse(self.application, sizes, self._lives.all(steps))

    def sizes(self, genes: Sequence[int]) -> dict[Held, int]:
        """Return B^min: the elements that each edge holds at most."""
        return dict(zip(self.application.held, self._sizes(genes)[0], strict=True))

    def _sizes(self, genes: Sequence[int]) -> tuple[list[int], list[list[int]]]:
        """Return B^min, elements of each edge, and the step of each layer (lines 29 to 34)."""
        sizes = list(self._whole)
        steps: list[list[int]] = []
        for number, part in enumerate(self._parts):
            own = tuple(genes[gene] for gene in self._genes[number])
            at: list[int] = []
            for step, run in enumerate(part.runs(own)):
                at += [step] * (run.end - run.start)
                if run.by_parts and run.end - run.start > 1:
                    for ends, rows in part.held_rows(run, own).items():
                        held = self._index[number][ends]
                        sizes[held] = rows * self._rows[held]
            steps.append(at)
        return sizes, steps

    def derived(self, genes: Sequence[int]) -> tuple[Application, tuple[int, ...]]:
        """Return the application with schedules of steps and runs, and B^min (lines 27 to 35)."""
        sizes, steps = self._sizes(genes)
        schedules: list[Schedule] = []
        for part, own in zip(self._parts, steps, strict=True):
            layers: list[list[int]] = [[] for _ in range(own[-1] + 1)]
            for layer, step in zip(part.order, own, strict=True):
                layers[step].append(layer)
            schedules.append(tuple(map(tuple, layers)))
        return self.application.with_schedules(schedules), tuple(sizes)

    def all_whole(self) -> Chromosome:
        """Return the extreme without parts."""
        return (WHOLE,) * self.length

    def all_by(self, rows: int) -> Chromosome:
        """Return the extreme in which every layer makes so many rows at a time."""
        return tuple(rows if can else WHOLE for can in self.divisible)
