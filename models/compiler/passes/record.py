"""What a pass is, and a network on its way to a pack, which passes change."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import onnx
from onnx import TensorProto

from models.compiler.analysis.graph import Graph, ValueTypes
from models.compiler.cutting.partition import CutGraph, Fault, faults
from models.compiler.cutting.scratch import Measure, runs_on_cpu
from models.network.fields import Array
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

    ``path``: the source, for messages. ``folder``: an empty folder for working files. ``finest_bytes``:
    of a layer's chunk; None: the default for the size of the network. ``fault``: says why an
    engine refuses a piece. ``measure``: what pieces allocate on the target's device.

    First there is ``model``, whose large weights lie in files of ``folder``; ``step``: the file with those
    that ONNX Runtime wrote last is called so. ``is_valid``: whether the standard is kept. ``types``: of its
    values, as inferred last, and by passes since then. ``has_integers``: whether DequantizeLinear reads
    constants. ``tensors``, ``dequantised``: as in a ``Graph``.

    Then there is ``divided`` instead. ``chunk_bytes``: of a layer's chunk. ``undivided``: its graph before
    regions; ``refused``: why ONNX Runtime does not take a node with its weights as inputs, by what the node
    makes first.
    """

    model: onnx.ModelProto
    path: Path
    folder: Path
    target: Target = field(default_factory=host_target)
    finest_bytes: int | None = None
    fault: Fault = field(default_factory=lambda: faults(open_piece))
    measure: Measure = runs_on_cpu
    step: str = SOURCE
    is_valid: bool = False
    types: ValueTypes = field(default_factory=lambda: ValueTypes({}, {}))
    tensors: Mapping[str, TensorProto] = field(default_factory=dict)
    has_integers: bool = False
    dequantised: Mapping[str, str] = field(default_factory=dict)
    divided: CutGraph = field(init=False)
    chunk_bytes: int = 0
    undivided: Graph | None = None
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def values(self) -> Mapping[str, Array]:
        """The values of known size, as inferred last."""
        return self.types.placed

    @property
    def is_source(self) -> bool:
        """Whether ONNX Runtime has yet to rewrite it."""
        return self.step == SOURCE

    @property
    def is_read(self) -> bool:
        """Whether there is a graph: from the pass "read-graph" on."""
        return hasattr(self, "divided")

    @property
    def graph(self) -> Graph:
        """The graph of ``divided``."""
        return self.divided.graph

    @graph.setter
    def graph(self, graph: Graph) -> None:
        self.divided.graph = graph

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
