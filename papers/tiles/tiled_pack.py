"""A pack whose operators make tiles, too: by graphs that pad neither side, made of those that rows run.

No pack has such graphs, since no plan takes tiles (docs/research/tiles-measured.md).
"""

from dataclasses import dataclass, fields, replace

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from models.compiler.analysis.graph import PLAIN_DOMAINS
from models.compiler.cutting.rows import POOLS, Windowed, padded, window_of
from models.graphs.nodes import attributes, node_of, versions_of
from models.network.fields import Array
from models.network.node import KnownTensors, UnsuitedError
from models.network.operators.elements import POINTWISE
from models.network.operators.reading import Operator, Resize, read_operator
from models.network.windows import Window
from models.packs.pack import Pack
from models.packs.records.rows import RowOperator, RowValue
from papers.tiles.layers import TileError
from pipeline.program.boxes.tiles import TiledOperator

_WINDOWED = ("Conv", *POOLS)


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
        return TiledOperator(**known, tile_graph=numbers[graph], across=across)

    operators = tuple(map(tiled, pack.manifest.row_operators))
    changed = pack.manifest.model_copy(update={"row_operators": operators, "graphs": tuple(ranges)})
    return replace(pack, manifest=changed, graphs=tuple(graphs))


@dataclass(frozen=True)
class _RowGraph:
    """``model``, which makes rows of ``output`` from rows of ``inputs``: one node."""

    item: RowOperator
    inputs: list[RowValue]
    output: RowValue
    model: onnx.ModelProto

    @classmethod
    def of(cls, pack: Pack, item: RowOperator) -> "_RowGraph":
        values = pack.manifest.row_values
        try:
            model = onnx.ModelProto.FromString(pack.graphs[item.graph])
        except DecodeError as exc:
            raise TileError(f"{pack.folder}: graph {item.graph} is not ONNX ({exc})") from exc
        if len(model.graph.node) != 1:
            raise TileError(f"{pack.folder}: graph {item.graph} is not one node")
        inputs = [values[taken.row_value] for taken in item.inputs]
        return cls(item, inputs, values[item.output], model)

    @property
    def node(self) -> onnx.NodeProto:
        return self.model.graph.node[0]

    @property
    def is_windowed(self) -> bool:
        return self.node.op_type in _WINDOWED

    def unpadded(self) -> bytes:
        """Return the graph without padding to the left and right."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        if self.is_windowed:
            model.graph.node[0].CopyFrom(padded(self.node, [0, 0, 0, 0]))
        return bytes(model.SerializeToString(deterministic=True))

    def across(self) -> tuple[Window, ...] | None:
        """Return what it needs of the columns of each input; None: its kernel wants whole rows."""
        as_rows = tuple(taken.window for taken in self.item.inputs)
        if self.is_windowed:
            window = self._window()
            return None if window is None else (window, *as_rows[1:])
        if self.node.op_type == "Upsample":
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
        if self.node.op_type in POOLS and self.node.domain in PLAIN_DOMAINS:
            return None  # its numbers are taken in vectors along the width
        down = self.item.inputs[0].window
        _, left, _, right = attributes(self.node).get("pads", (0, 0, 0, 0))
        whole = padded(self.node, [down.before, left, max(down.behind, 0), right])
        operator = self._operator(whole)
        return window_of(operator, 1) if isinstance(operator, Windowed) else None

    def _is_even(self) -> bool:
        """Return whether what operators on elements read beside values is the same in all columns."""
        shapes = [tuple(tensor.dims) for tensor in self.model.graph.initializer]
        shapes += [operand.shape for operand in self.item.weights]
        return self.node.op_type not in POINTWISE or all(
            np.prod(shape) == 1 or shape[-1] == 1 for shape in shapes
        )

    def _operator(self, node: onnx.NodeProto) -> Operator | None:
        """Return what ``node`` computes of whole values; None: no family of operators knows it."""
        held = {item.name: numpy_helper.to_array(item) for item in self.model.graph.initializer}
        names = [port.name for port in self.model.graph.input]
        arrays: dict[str, Array] = {
            name: Array(dtype=array.dtype.name, shape=array.shape) for name, array in held.items()
        }
        arrays |= zip(names, [*self.inputs, *self.item.weights], strict=True)
        try:
            opsets = versions_of(self.model.opset_import)
            return read_operator(node_of(node, opsets), KnownTensors(arrays.get, held.get))
        except UnsuitedError:
            return None
