"""Rows that phases need, and the order in which layers fire (seed 000, Table 2, Fig. 3).

The last layer is fired phase by phase, and a layer that lacks rows has their makers fired first. So a layer
runs ahead by no more than its readers need.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from papers.cnn.layers import Cnn, CnnLayer, Edge

# Rows of inputs and outputs: what a layer needs, and what it is done with (seed 000, Table 2; seed 001).
#
# Rows are counted from the top: "so many rows" are the first so many.

#: A gene: rows that a layer makes at a time; WHOLE: all, in one phase.
WHOLE = 0
ROWS = (WHOLE, 1, 2, 4, 8, 16)


def phases(layer: CnnLayer, rows: int) -> int:
    """Return Phi of ``layer`` that makes so many rows at a time (Eq. 6)."""
    return 1 if rows == WHOLE else -(-layer.output.height // rows)


def made(layer: CnnLayer, rows: int, wanted: int) -> int:
    """Return how many rows exist when ``wanted`` of them do: whole phases of ``rows``."""
    if rows == WHOLE:
        return layer.output.height if wanted else 0
    return min(-(-wanted // rows) * rows, layer.output.height)


def needed(cnn: Cnn, edge: Edge, rows: int) -> int:
    """Return how many rows of an edge's source the first ``rows`` rows of its target need."""
    if rows <= 0:
        return 0
    height = cnn.layers[edge.source].output.height
    return min(max(cnn.window(edge).end(rows), 1), height)


def done(cnn: Cnn, edge: Edge, rows: int) -> int:
    """Return how many rows of an edge's source are done with when its target has made ``rows`` rows."""
    height = cnn.layers[edge.source].output.height
    if rows >= cnn.layers[edge.target].output.height:
        return height
    return min(max(cnn.window(edge).begin(rows), 0), height)


# The order of phases (seed 000, Fig. 3): every layer fires as late as it can, and then just often enough.


@dataclass(frozen=True, slots=True)
class Repeat:
    """``layers`` fire in this order, one phase each, so many ``times``."""

    layers: tuple[int, ...]
    times: int


class Firing:
    """Fires the phases of ``run``, layers of ``cnn``; ``rows[layer]`` at a time.

    ``most[edge]`` are the rows that an edge inside the run held at its fullest.
    """

    def __init__(self, cnn: Cnn, run: Sequence[int], rows: Sequence[int]) -> None:
        self._cnn, self._run, self._rows = cnn, run, rows
        inside = set(run)
        edges = [edge for edge in cnn.edges if edge.source in inside and edge.target in inside]
        self._inputs = {each: [edge for edge in edges if edge.target == each] for each in run}
        self._outputs = {each: [edge for edge in edges if edge.source == each] for each in run}
        self._made = dict.fromkeys(run, 0)
        self.most = {(edge.source, edge.target): 0 for edge in edges}

    def order(self) -> Iterator[int]:
        """Yield which layer fires, phase by phase."""
        for targets in sink_targets(self._cnn, self._run, self._rows):
            for layer, rows in targets.items():
                while self._made[layer] < rows:
                    yield from self._fire(layer)
        for layer in reversed(self._run):  # rows that no window reaches
            while self._made[layer] < self._cnn.layers[layer].output.height:
                yield from self._fire(layer)

    def _fire(self, layer: int) -> Iterator[int]:
        """Fire a phase of ``layer``, and before it what that needs; no recursion: networks are deep."""
        waiting = [layer]
        while waiting:
            item = waiting[-1]
            rows = made(self._cnn.layers[item], self._rows[item], self._made[item] + 1)
            lacking = (
                edge.source
                for edge in self._inputs[item]
                if self._made[edge.source] < needed(self._cnn, edge, rows)
            )
            source = next(lacking, None)
            if source is not None:
                waiting.append(source)
                continue
            waiting.pop()
            self._end(item, rows)
            yield item

    def _end(self, layer: int, rows: int) -> None:
        """Note that ``layer`` has made ``rows`` rows."""
        self._made[layer] = rows
        for edge in self._outputs[layer]:
            held = rows - done(self._cnn, edge, self._made[edge.target])
            self.most[layer, edge.target] = max(self.most[layer, edge.target], held)


def sink_targets(cnn: Cnn, run: Sequence[int], rows: Sequence[int]) -> Iterator[dict[int, int]]:
    """Yield how many rows the layers without readers in the run have after each round, in proportion."""
    inside = set(run)
    sinks = [layer for layer in run if not inside.intersection(cnn.readers[layer])]
    counts = {layer: phases(cnn.layers[layer], rows[layer]) for layer in sinks}
    rounds = max(counts.values())
    for number in range(1, rounds + 1):
        yield {layer: sink_rows(cnn, layer, rows[layer], number, rounds) for layer in sinks}


def sink_rows(cnn: Cnn, layer: int, rows: int, number: int, rounds: int) -> int:
    """Return how many rows a sink has after round ``number`` of ``rounds``."""
    item = cnn.layers[layer]
    fired = -(-phases(item, rows) * number // rounds)
    return min(fired * (rows or item.output.height), item.output.height)


def compressed(order: Sequence[int]) -> tuple[Repeat, ...]:
    """Return an order in short: ``[l1] x 5, [l2], [l1, l2] x 27, [l2] x 4``."""
    found: list[Repeat] = []
    at = 0
    while at < len(order):
        length, times = _best_period(order, at)
        period = order[at : at + length]
        if times > 1 and period[0] != min(period):  # a period begins with its first layer
            length, times = list(period).index(min(period)), 1
        found.append(Repeat(tuple(order[at : at + length]), times))
        at += length * times
    return tuple(found)


_LONGEST_PERIOD = 64


def _best_period(order: Sequence[int], at: int) -> tuple[int, int]:
    """Return which period from ``at`` on repeats over most of the order, the shortest of equal ones."""
    best = (1, 1)
    for length in range(1, min(_LONGEST_PERIOD, len(order) - at) + 1):
        times = 1
        period = order[at : at + length]
        while order[at + times * length : at + (times + 1) * length] == period:
            times += 1
        if times > 1 and length * times > best[0] * best[1]:
            best = length, times
    return best
