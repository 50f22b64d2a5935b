"""Pisarchyk and Lee's greedy-by-size: the buffer reuse that seed 000 compares with, its [23].

Per CNN, tensors by falling size, each to the smallest gap between those that live with it; nothing is
shared among CNNs, and partitions do not run at once.
"""

from dataclasses import dataclass

from models.geometry.cnn import Cnn
from papers.applications.application import Application
from papers.applications.placements import smallest_gap


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
        offset = smallest_gap(beside, item.size)
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
