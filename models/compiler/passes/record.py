"""What a pass is, and a network on its way to a pack, which passes change."""

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Literal

from models.compiler.cutting.partition import CutGraph, Fault, faults
from models.compiler.cutting.scratch import Measure, runs_on_cpu
from models.graphs.graph import Graph
from models.packs.target import Target, host_target
from models.runtime.sessions import open_piece

#: What a network is after a pass. meaning: ONNX operators. layout: as ONNX Runtime optimised it for the
#: target, perhaps in blocks of channels. pieces: in the order, and divided as, it streams.
Level = Literal["meaning", "layout", "pieces"]
#: What a pass may change of results: nothing, by other rounding of the same sums, or by other numbers.
Error = Literal["same bits", "other order of sums", "within a bound"]


#: What files are called whose weights are those of the source.
SOURCE = "source"


@dataclass
class Compilation:
    """A network on its way to a pack.

    ``source``: as it was read. ``path``: its file, for messages. ``folder``: an empty folder for working
    files. ``finest_bytes``: of a layer's chunk; None: the default for the size of the network. ``fault``:
    says why an engine refuses a piece. ``measure``: what pieces allocate on the target's device.

    ``step``: the file with the weights that ONNX Runtime wrote last is called so. ``is_valid``: whether the
    standard is kept. ``is_typed``: whether values have the types of what is computed. ``has_integers``:
    whether DequantizeLinear reads constants.

    ``divided``: the graph, and what it is divided into. ``chunk_bytes``: of a layer's chunk.
    ``undivided``: its graph before regions; ``refused``: why ONNX Runtime does not take a node with its
    weights as inputs, by what the node makes first.
    """

    source: InitVar[Graph]
    path: Path
    folder: Path
    target: Target = field(default_factory=host_target)
    finest_bytes: int | None = None
    fault: Fault = field(default_factory=lambda: faults(open_piece))
    measure: Measure = runs_on_cpu
    step: str = SOURCE
    is_valid: bool = False
    is_typed: bool = False
    has_integers: bool = False
    divided: CutGraph = field(init=False)
    chunk_bytes: int = 0
    undivided: Graph | None = None
    refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self, source: Graph) -> None:
        self.divided = CutGraph(source)

    @property
    def graph(self) -> Graph:
        """The graph as it is now."""
        return self.divided.graph

    @graph.setter
    def graph(self, graph: Graph) -> None:
        self.divided.graph = graph

    @property
    def is_source(self) -> bool:
        """Whether ONNX Runtime has yet to rewrite it."""
        return self.step == SOURCE

    @property
    def on_cpu(self) -> bool:
        """Whether the target is a CPU."""
        return self.target.capability is None


@dataclass(frozen=True)
class Pass:
    """One step of the compiler.

    ``name``: in words with hyphens. ``reason``: why it is there, one sentence. ``needs``: names of passes
    that run before it, and without which it has no place. ``level``: of what it leaves. ``error``: by what
    answers with it and without it differ at most, what later passes do otherwise included. ``required``:
    without it there is no pack, or a wrong one. ``run`` changes a compilation; it returns the name of a
    pass before it from which passes run again, knowing more; None: the next one runs.
    """

    name: str
    reason: str
    needs: tuple[str, ...]
    level: Level
    error: Error
    required: bool
    run: Callable[[Compilation], str | None]
