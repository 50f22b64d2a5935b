"""A CNN as seeds 000 (Section 2.1) and 001 (Section III-A) define it: layers, their windows, and edges.

Nothing here says how it is computed or where its data lie: planners of activation memory start from it.
"""

from dataclasses import dataclass
from functools import cached_property

from models.network.windows import SAME, Window


class GeometryError(ValueError):
    """A CNN whose layers do not fit together."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor's height, width and channels, in elements."""

    height: int
    width: int
    channels: int

    @property
    def row_elements(self) -> int:
        """Elements of one row."""
        return self.width * self.channels

    @property
    def elements(self) -> int:
        """Elements of all rows."""
        return self.height * self.row_elements


@dataclass(frozen=True, slots=True)
class CnnLayer:
    """One layer. ``output`` is what each of its outgoing edges carries.

    ``window``: how it moves down its input, in rows: Theta's height, stride and padding, which crops where
    it is negative, as in the paper's Fig. 3. Whatever needs its whole input before its first output (fully
    connected, global pooling) has a window as high as the input.
    ``seconds``: time of the whole layer where it is known. ``parameters``: its weights and biases, a count.
    """

    name: str
    operator: str
    output: Shape
    window: Window = SAME
    seconds: float = 0.0
    parameters: int = 0


@dataclass(frozen=True, slots=True)
class Edge:
    """Layer ``target`` reads what layer ``source`` makes; both are numbers of layers.

    ``window``: where the target reads this input otherwise than its own window says (the sum that a fused
    convolution adds). ``channels``: where it reads only so many of the source's.
    """

    source: int
    target: int
    window: Window | None = None
    channels: int | None = None


@dataclass(frozen=True)
class Cnn:
    """Layers in an order in which they can run, and edges from earlier to later ones.

    Raises:
        GeometryError: an edge leads nowhere or backwards, or is there twice; a layer's name is not its own.
    """

    name: str
    layers: tuple[CnnLayer, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        names = [layer.name for layer in self.layers]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise GeometryError(f"{self.name}: two layers are called {twice!r}")
        for edge in self.edges:
            if not 0 <= edge.source < edge.target < len(self.layers):
                raise GeometryError(
                    f"{self.name}: edge {edge.source} -> {edge.target} does not lead from a layer "
                    f"to a later one of {len(self.layers)}"
                )
        if len({(edge.source, edge.target) for edge in self.edges}) < len(self.edges):
            raise GeometryError(f"{self.name}: an edge is there twice")

    def window(self, edge: Edge) -> Window:
        """Return the window through which the target of ``edge`` reads its source."""
        return edge.window or self.layers[edge.target].window

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """For each layer those that read it."""
        targets: list[list[int]] = [[] for _ in self.layers]
        for edge in self.edges:
            targets[edge.source].append(edge.target)
        return tuple(map(tuple, targets))
