"""One arena for the buffers of a CSDF schedule, instead of memory for each."""

from collections.abc import Sequence
from dataclasses import dataclass

from papers.dataflow.csdf import Capacities, DataflowGraph
from papers.dataflow.lives import TokenLife, buffer_lives, joined, peak, token_lives
from pipeline.planning.offsets.problem import LiveBuffer, Problem
from pipeline.planning.offsets.solve import place

# So many things are placed each by itself; of more, some of a channel that follow each other together.
_MOST_PLACED = 3000


@dataclass(frozen=True, slots=True)
class DataflowArena:
    """``size``: of the arena, no more than the buffers' sum; ``live``: the most that lives at once."""

    size: int
    live: int


def dataflow_arena(
    graph: DataflowGraph, capacities: Capacities, order: Sequence[int]
) -> DataflowArena:
    """Return an arena for ``order``, a schedule of an iteration within ``capacities``."""
    tokens = token_lives(graph, capacities, order)
    count = -(-sum(map(len, tokens)) // _MOST_PLACED)
    fewer = [life for of_channel in tokens for life in joined(of_channel, max(count, 1))]
    size = min(_placed(fewer), _placed(buffer_lives(graph, capacities, order)))
    return DataflowArena(size, peak([life for of_channel in tokens for life in of_channel]))


def _placed(lives: Sequence[TokenLife]) -> int:
    buffers = tuple(LiveBuffer(life.size, life.start, life.end) for life in lives if life.size)
    return place(Problem(buffers), seconds=0).n_bytes
