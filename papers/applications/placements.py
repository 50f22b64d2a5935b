"""The papers' ways to place activations, on the values that the engine has: offsets in one arena.

Whatever lives from ``start`` until before ``end`` gets bytes of its own in that time (lives.py of
pipeline/program); sizes are rounded up to the arena's alignment.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from papers.applications.application import Application
from papers.cnn.layers import Cnn
from pipeline.program.lives import ALIGNMENT, Lifetime

#: Offsets of lives, and what they take together.
Placement = tuple[list[int], int]


def naive_placement(lives: Sequence[Lifetime]) -> Placement:
    """Place everything behind each other."""
    offsets, end = [], 0
    for life in lives:
        offsets.append(end)
        end += _size(life)
    return offsets, end


def reuse_placement(lives: Sequence[Lifetime]) -> Placement:
    """Place values in buffers that are reused, greedily as seed 000's Algorithm 1: the least growth."""
    sizes: list[int] = []
    busy_until: list[int] = []
    chosen = [-1] * len(lives)
    for index in sorted(range(len(lives)), key=lambda i: (lives[i].start, i)):
        life, size = lives[index], _size(lives[index])
        if not size:
            continue
        free = [number for number, end in enumerate(busy_until) if end <= life.start]
        if free:
            best = min(free, key=lambda number: max(size - sizes[number], 0))
        else:
            best = len(sizes)
            sizes.append(0)
            busy_until.append(0)
        sizes[best], busy_until[best] = max(sizes[best], size), life.end
        chosen[index] = best
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    return [0 if number < 0 else starts[number] for number in chosen], sum(sizes)


def greedy_placement(lives: Sequence[Lifetime]) -> Placement:
    """Place values by falling size in the smallest gap, as Pisarchyk and Lee do."""
    offsets = [0] * len(lives)
    placed: list[int] = []
    for index in sorted(range(len(lives)), key=lambda i: -_size(lives[i])):
        life = lives[index]
        beside = [
            (offsets[other], offsets[other] + _size(lives[other]))
            for other in placed
            if lives[other].start < life.end and life.start < lives[other].end
        ]
        offsets[index] = _smallest_gap(beside, _size(life))
        placed.append(index)
    return offsets, max((offsets[i] + _size(lives[i]) for i in placed), default=0)


def _smallest_gap(taken: Sequence[tuple[int, int]], size: int) -> int:
    """Return where the smallest gap between ranges begins that is large enough; else the end of all."""
    best, least, end = -1, 0, 0
    for start, stop in sorted(taken):
        gap = start - end
        if gap >= size and (best < 0 or gap < least):
            best, least = end, gap
        end = max(end, stop)
    return end if best < 0 else best


def _size(life: Lifetime) -> int:
    return -(-life.n_bytes // ALIGNMENT) * ALIGNMENT


PLACEMENTS: dict[str, Callable[[Sequence[Lifetime]], Placement]] = {
    "naive": naive_placement,
    "reuse": reuse_placement,
    "greedy-by-size": greedy_placement,
}


# Pisarchyk and Lee's greedy-by-size: the buffer reuse that seed 000 compares with, its [23].
#
# Per CNN, tensors by falling size, each to the smallest gap between those that live with it; nothing is
# shared among CNNs, and partitions do not run at once.


@dataclass(frozen=True, slots=True)
class PlacedOutput:
    """A layer's output in the arena of its CNN: [offset, offset + size), elements, steps [start, end)."""

    layer: int
    offset: int
    size: int
    start: int
    end: int


def greedy_by_size(cnn: Cnn, order: tuple[int, ...] | None = None) -> list[PlacedOutput]:
    """Return where the outputs that others read lie. ``order``: of the layers; None: as they stand."""
    step = {layer: at for at, layer in enumerate(order or range(len(cnn.layers)))}
    tensors = [
        PlacedOutput(
            layer,
            0,
            cnn.layers[layer].output.elements,
            step[layer],
            max(step[reader] for reader in readers) + 1,
        )
        for layer, readers in enumerate(cnn.readers)
        if readers
    ]
    placed: list[PlacedOutput] = []
    for item in sorted(tensors, key=lambda item: -item.size):
        beside = [
            (other.offset, other.offset + other.size)
            for other in placed
            if other.start < item.end and item.start < other.end
        ]
        offset = _smallest_gap(beside, item.size)
        placed.append(PlacedOutput(item.layer, offset, item.size, item.start, item.end))
    return placed


def arena_elements(placed: list[PlacedOutput]) -> int:
    """Return what an arrangement takes."""
    return max((item.offset + item.size for item in placed), default=0)


def greedy_memory(application: Application) -> int:
    """Return M of an application whose CNNs are each placed so, bytes."""
    elements = 0
    for number, cnn in enumerate(application.cnns):
        own = application.of_cnn(number)
        order = tuple(layer for item in own for layer in application.partitions[item].layers)
        elements += arena_elements(greedy_by_size(cnn, order))
    return application.parameter_memory + elements * application.element_bytes
