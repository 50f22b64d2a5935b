"""A pack's layers as seed 002 fuses them: the memory of configurations, the choice of one, and its run."""

from dataclasses import dataclass, fields, replace
from statistics import median

import numpy as np
from google.protobuf.message import DecodeError

from models.compiler.cutting.row_nodes import Windowed, padded, window_of
from models.graphs.graph import Graph
from models.graphs.reader import graph_from
from models.graphs.writer import serialised
from models.network.catalogue import OperatorRecord, read_operator, traits_of
from models.network.fields import Array
from models.network.names import Op
from models.network.node import KnownTensors, Node, UnsuitedError
from models.network.operators.reading import Operator, Resize
from models.network.windows import Window
from models.packs.manifest import checksum
from models.packs.pack import Pack
from models.packs.records.row_parts import RowOperator, RowValue
from papers.tiles.fused_groups import FusedLayer, TileConfiguration, TileError, pack_layers
from papers.tiles.predictor import predict, weight_bytes
from papers.tiles.tiled_regions import TiledOperator
from papers.tiles.tiling_search import WideSearch, paper_search
from pipeline.devices.base import Device
from pipeline.execution.given import Arrays
from pipeline.execution.opened import opened
from pipeline.measuring.sweeps import random_inputs
from pipeline.peers.child import anonymous_bytes
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.program.region_plan import Region, RegionError
from pipeline.schedule.architectures import ARCHITECTURES


def regions_of(
    program: Program, layers: tuple[FusedLayer, ...], configuration: TileConfiguration
) -> tuple[Region, ...]:
    """Return the regions of ``configuration``, whose layers are those of the pack.

    A group of one tile runs whole, each of its layers alone.

    Raises:
        TileError: it has other layers than the pack.
    """
    if configuration.end != len(layers):
        raise TileError(f"{configuration} has {configuration.end} layers, the pack {len(layers)}")
    after = program.row_operators[len(layers) - 1].end_piece
    starts = [*(layer.piece for layer in layers), after]
    regions = []
    for group in configuration.groups:
        if not group.tiling.is_whole:
            _, height, width = layers[group.end - 1].output
            regions.append(
                Region(
                    starts[group.first],
                    starts[group.end],
                    group.tiling.boxes_of(height, width),
                )
            )
    return tuple(regions)


# A pack whose operators make tiles, too: by graphs that pad neither side, made of those that rows run.
#
# No pack has such graphs, since no plan takes tiles (docs/research/tiles.md, "Why no plan takes tiles").


def tiled_pack(pack: Pack) -> Pack:
    """Return ``pack`` with row operators that make tiles, with the bits of the whole, where kernels can.

    Raises:
        TileError: what rows run is no graph of one node.
    """
    graphs, ranges = list(pack.graphs), list(pack.manifest.graphs)
    numbers = {graph: number for number, graph in enumerate(graphs)}

    def tiled(item: RowOperator) -> RowOperator:
        row_graph = _RowGraph.of(pack, item)
        across = row_graph.across()
        if across is None:
            return item
        graph = row_graph.unpadded()
        if graph not in numbers:
            numbers[graph] = len(graphs)
            graphs.append(graph)
            ranges.append(ranges[item.graph])  # it takes as much memory as that of rows
        known = {field.name: getattr(item, field.name) for field in fields(RowOperator)}
        return TiledOperator(**known | {"graph": numbers[graph]}, across=across)

    operators = tuple(map(tiled, pack.manifest.row_operators))
    changed = replace(pack.manifest, row_operators=operators, graphs=tuple(ranges))
    return replace(pack, manifest=changed, graphs=tuple(graphs))


@dataclass(frozen=True)
class _RowGraph:
    """``graph``, which makes rows of ``output`` from rows of ``inputs``: one node."""

    item: RowOperator
    inputs: list[RowValue]
    output: RowValue
    graph: Graph

    @classmethod
    def of(cls, pack: Pack, item: RowOperator) -> "_RowGraph":
        values = pack.manifest.row_values
        try:
            graph = graph_from(pack.graphs[item.graph])
        except DecodeError as exc:
            raise TileError(f"{pack.folder}: graph {item.graph} is not ONNX ({exc})") from exc
        if len(graph.nodes) != 1:
            raise TileError(f"{pack.folder}: graph {item.graph} is not one node")
        inputs = [values[taken.row_value] for taken in item.inputs]
        return cls(item, inputs, values[item.output], graph)

    @property
    def node(self) -> Node:
        return self.graph.nodes[0]

    @property
    def _record(self) -> OperatorRecord:
        return traits_of(self.node.operator)

    @property
    def is_windowed(self) -> bool:
        return self._record.access == "windowed"

    def unpadded(self) -> bytes:
        """Return the graph without padding to the left and right."""
        node = padded(self.node, [0, 0, 0, 0]) if self.is_windowed else self.node
        return serialised(replace(self.graph, nodes=(node,)))

    def across(self) -> tuple[Window, ...] | None:
        """Return what it needs of the columns of each input; None: its kernel needs whole rows."""
        as_rows = tuple(taken.window for taken in self.item.inputs)
        if self.is_windowed:
            window = self._window()
            return None if window is None else (window, *as_rows[1:])
        if self._record.of is Op.Upsample:
            operator = self._operator(self.node)
            factors = operator.factors if isinstance(operator, Resize) else None
            return None if factors is None else (Window(factor=factors[3]),)
        pairs = zip(as_rows, self.inputs, strict=True)
        fits = all(
            window.fitted(value.shape[3], self.output.shape[3]) == window for window, value in pairs
        )
        return as_rows if fits and self._is_even() else None

    def _window(self) -> Window | None:
        """Return the window across of a convolution or a pool; None: its borders are special."""
        if not self._record.layer and not self._record.is_blocked:
            return None  # its numbers are taken in vectors along the width
        down = self.item.inputs[0].window
        _, left, _, right = self.node.attributes.get("pads", (0, 0, 0, 0))
        whole = padded(self.node, [down.before, left, max(down.behind, 0), right])
        operator = self._operator(whole)
        return window_of(operator, 1) if isinstance(operator, Windowed) else None

    def _is_even(self) -> bool:
        """Return whether what operators on elements read beside values is the same in all columns."""
        shapes = [array.shape for array in self.graph.constants.values()]
        shapes += [operand.shape for operand in self.item.weights]
        return self._record.function is None or all(
            np.prod(shape) == 1 or shape[-1] == 1 for shape in shapes
        )

    def _operator(self, node: Node) -> Operator | None:
        """Return what ``node`` computes of whole values; None: no family of operators has it."""
        held = self.graph.constants
        arrays: dict[str, Array] = {name: self.graph.array(name) for name in held}
        arrays |= zip(self.graph.inputs, [*self.inputs, *self.item.weights], strict=True)
        try:
            return read_operator(node, KnownTensors(arrays.get, held.get))
        except UnsuitedError:
            return None


_SWEEPS = 5


@dataclass(frozen=True, slots=True)
class Ran:
    """What sweeps took: anonymous memory beside the process, usual seconds. ``answers``: their bits."""

    n_bytes: int
    seconds: float
    answers: frozenset[str]


class FusedPack:
    """``pack`` on ``device``, its weights streamed. ``bias_bytes``: what is there beside arena and ring.

    Raises:
        TileError: its layers are no chain, or none of them runs on tiles.
    """

    def __init__(self, pack: Pack, device: Device) -> None:
        self._device = device
        self._program = prepare(tiled_pack(pack), device)
        self.layers = pack_layers(self._program)
        whole = self._planned(())
        self.bias_bytes = whole.session_bytes + whole.scratch_bytes + whole.resident_bytes

    def predicted(self, configuration: TileConfiguration) -> int:
        """Return the memory of a configuration, with the weights that must be there and the bias."""
        weights = max(weight_bytes(self.layers, group) for group in configuration.groups)
        return predict(self.layers, configuration, self.bias_bytes) + weights

    def by_paper(self, limit_bytes: int) -> TileConfiguration:
        """Return what Algorithm 3 takes for a limit by ``predicted``, whether or not it fits."""
        return paper_search(self.layers, limit_bytes, self.predicted)

    def by_wide_search(self, limit_bytes: int) -> TileConfiguration:
        """Return the fastest of the wider search.

        Raises:
            TileError: none takes less than the limit.
        """
        found = WideSearch(self.layers).find(limit_bytes, self.bias_bytes)
        if found is None:
            raise TileError(
                f"{self._program.name}: no configuration takes less than {limit_bytes:,} bytes"
            )
        return found

    def plan(self, configuration: TileConfiguration) -> Plan:
        """Return the plan of a configuration.

        Raises:
            TileError: it has other layers than the pack, or a group of it cannot run.
        """
        regions = regions_of(self._program, self.layers, configuration)
        try:
            return self._planned(regions)
        except RegionError as exc:
            raise TileError(f"{self._program.name}: {configuration}: {exc}") from exc

    def run(self, plan: Plan) -> Ran:
        """Run sweeps on drawn inputs."""
        inputs, base, most, seconds = random_inputs(self._program), anonymous_bytes(), 0, []
        answers = set[str]()
        with opened(self._program, plan, self._device) as engine:
            for _ in range(_SWEEPS):
                answered, statistics = engine.answer(inputs, _checksums)
                answers.add(answered)
                seconds.append(statistics.delay_seconds)
                most = max(most, anonymous_bytes())
        return Ran(most - base, median(seconds), frozenset(answers))

    def run_whole(self) -> Ran:
        """Run the network without tiles."""
        return self.run(self._planned(()))

    def _planned(self, regions: tuple[Region, ...]) -> Plan:
        choice = Choice(regions=regions)
        return make_plan(self._program, ARCHITECTURES["auto"], choice=choice)


def _checksums(outputs: Arrays) -> str:
    """Return what distinguishes answers: copies of them would be memory of the request."""
    return " ".join(checksum(np.ascontiguousarray(outputs[name]).data) for name in sorted(outputs))
