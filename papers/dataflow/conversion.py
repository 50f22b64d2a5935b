"""A CNN as a CSDF graph: seed 001, Algorithm 1, and two other ways to account for overlap.

A layer becomes an actor that makes its output some rows a phase (the paper: one), an edge a channel whose
tokens are elements. What a phase consumes follows from its window, with rows that padding adds left out and
rows that it crops taken along; the last phase takes what is left, so that channels empty.

Line 9 of the algorithm gives a layer without overlap and padding one phase; Table II gives the input layer
of the same graph 32, and so do we: only a window as high as the input is one phase.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from models.network.windows import Window
from papers.cnn.layers import Cnn, CnnLayer, Edge
from papers.dataflow.consistency import MOST_FIRINGS
from papers.dataflow.csdf import Actor, Channel, DataflowError, DataflowGraph

#: For each layer, the rows [first, end) of its output that each of its phases makes.
Phases = Sequence[Sequence[tuple[int, int]]]


class WindowOverlap(Enum):
    """Where rows lie that one window has in common with the next.

    ``LOOP``: in channels from an actor to itself, beside the one that brings rows (Algorithm 1).
    ``RING``: in the consumer's ring, memory of its own that no channel counts; channels bring new rows.
    ``CHANNEL``: in the channel that brings them, until no window needs them, so that it counts them once; a
    second channel, whose tokens have no memory, says when enough rows are there.
    """

    LOOP = "loop"
    RING = "ring"
    CHANNEL = "channel"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of an edge by phases of its target.

    ``taken``: new ones; ``kept``: those of before that are needed again after the phase.
    """

    taken: tuple[int, ...]
    kept: tuple[int, ...]

    @property
    def freed(self) -> tuple[int, ...]:
        """Rows that are not needed after the phase."""
        before = (0, *self.kept[:-1])
        return tuple(
            had + new - left for had, new, left in zip(before, self.taken, self.kept, strict=True)
        )


def convert(
    cnn: Cnn, overlap: WindowOverlap = WindowOverlap.RING, rows: int | Sequence[int] = 1
) -> DataflowGraph:
    """Return ``cnn`` with ``rows`` rows of output a phase, of all layers or of each (0: all at once).

    Raises:
        DataflowError: these are more phases than an iteration may have firings, or a layer has no rows.
    """
    return graph_of(cnn, row_phases(cnn, rows), overlap)


def row_phases(cnn: Cnn, rows: int | Sequence[int] = 1) -> list[list[tuple[int, int]]]:
    """Return the phases of each layer where it makes so many rows at a time.

    Raises:
        DataflowError: these are more than an iteration may have firings, or a layer has no rows.
    """
    wanted = [rows] * len(cnn.layers) if isinstance(rows, int) else rows
    starts = []
    for number, (layer, count) in enumerate(zip(cnn.layers, wanted, strict=True)):
        height = layer.output.height
        if height < 1:
            raise DataflowError(f"{cnn.name}: layer {layer.name} has no rows")
        step = height if count < 1 or _is_whole(cnn, number) else count
        starts.append(range(0, height, step))
    total = sum(map(len, starts))  # before they are listed: a pack may say any height
    if total > MOST_FIRINGS:
        raise DataflowError(
            f"{cnn.name}: {total:,} phases, more than {MOST_FIRINGS:,}; with more rows in each?"
        )
    return [[(first, min(first + each.step, each.stop)) for first in each] for each in starts]


def _is_whole(cnn: Cnn, number: int) -> bool:
    """Return whether a layer needs all of its highest input for its first row (H = H^X)."""
    edges = [edge for edge in cnn.edges if edge.target == number]
    heights = [cnn.layers[edge.source].output.height for edge in edges]
    highest = max(heights, default=0)
    return any(
        height == highest and cnn.window(edge).reach >= height
        for height, edge in zip(heights, edges, strict=True)
    )


def graph_of(
    cnn: Cnn, phases: Phases, overlap: WindowOverlap, cropped: bool = False
) -> DataflowGraph:
    """Return ``cnn`` with the given phases; those of a layer follow each other.

    ``cropped``: rows below the last window of a layer never come into its channel. Else its last phase
    takes them, as the paper's do, and a layer's phases must make all of its rows.
    """
    actors = tuple(
        _actor(layer, len(of_layer)) for layer, of_layer in zip(cnn.layers, phases, strict=True)
    )
    channels = (
        channel for edge in cnn.edges for channel in _channels(cnn, phases, edge, overlap, cropped)
    )
    return DataflowGraph(cnn.name, actors, tuple(channels))


def row_elements(cnn: Cnn, edge: Edge) -> int:
    """Return the elements of a row that an edge carries."""
    output = cnn.layers[edge.source].output
    return output.width * (edge.channels or output.channels)


def _actor(layer: CnnLayer, phases: int) -> Actor:
    """Return a layer's actor; times are nanoseconds where the layer's is known, else 1 a phase."""
    return Actor(layer.name, (max(round(layer.seconds * 1e9 / phases), 1),) * phases)


def _channels(
    cnn: Cnn, phases: Phases, edge: Edge, overlap: WindowOverlap, cropped: bool
) -> Iterator[Channel]:
    source, target = cnn.layers[edge.source], cnn.layers[edge.target]
    elements = row_elements(cnn, edge)
    rows = _rows_of(cnn.window(edge), source.output.height, phases[edge.target], cropped)
    most = sum(rows.taken)
    if not most:
        return
    produced = tuple(
        (min(end, most) - min(first, most)) * elements for first, end in phases[edge.source]
    )
    taken = tuple(count * elements for count in rows.taken)
    freed = tuple(count * elements for count in rows.freed)
    kept = tuple(count * elements for count in rows.kept)
    name = f"{source.name} -> {target.name}"
    if overlap is WindowOverlap.CHANNEL and taken != freed:
        yield Channel(name, edge.source, edge.target, produced, freed)
        yield Channel(f"{name}, ready", edge.source, edge.target, produced, taken, token_size=0)
        return
    yield Channel(name, edge.source, edge.target, produced, taken)
    if overlap is WindowOverlap.LOOP and any(kept):
        loop = name if len(_inputs(cnn, edge.target)) > 1 else target.name
        yield Channel(f"{loop} -> {target.name}", edge.target, edge.target, kept, (0, *kept[:-1]))


def _inputs(cnn: Cnn, number: int) -> list[Edge]:
    return [edge for edge in cnn.edges if edge.target == number]


def _rows_of(
    window: Window, height: int, phases: Sequence[tuple[int, int]], cropped: bool
) -> _Rows:
    """Return the rows of an input of ``height`` that each phase takes, and those that it keeps."""
    # One row is a factor of every row: that of a gate.
    needs = [(0, 1) if height == 1 else window.within(*rows, height) for rows in phases]
    if not cropped:
        needs[-1] = (needs[-1][0], height)
    ends = [0]
    for _, end in needs:
        ends.append(max(ends[-1], end))
    taken = tuple(end - before for before, end in pairwise(ends))
    firsts = [first for first, _ in needs[1:]] + [ends[-1]]
    kept = tuple(max(end - first, 0) for end, first in zip(ends[1:], firsts, strict=True))
    return _Rows(taken, kept)
