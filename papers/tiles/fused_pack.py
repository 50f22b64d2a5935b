"""A pack's layers as seed 002 fuses them: the memory of configurations, and the choice of one."""

from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from models.compiler.analysis.graph import PLAIN_DOMAINS
from models.compiler.cutting.row_nodes import POOLS, Windowed, padded, window_of
from models.graphs.nodes import attributes, node_of, versions_of
from models.network.fields import Array
from models.network.node import KnownTensors, UnsuitedError
from models.network.operators.elements import POINTWISE
from models.network.operators.reading import Operator, Resize, read_operator
from models.network.windows import Window
from models.packs.pack import Pack
from models.packs.records.row_parts import RowOperator, RowValue
from papers.tiles.fused_groups import FusedLayer, TileConfiguration, TileError
from papers.tiles.predictor import GroupBoxes, predict, weight_bytes, whole_macs
from papers.tiles.tiling_search import WideSearch, paper_search
from pipeline.devices.base import Device
from pipeline.planning.make import make_plan
from pipeline.program.prepare import prepare
from pipeline.schedule.architectures import ARCHITECTURES

# The chain of layers that row operators of a pack are: what their graphs say of columns.

_WINDOWED = ("Conv", *POOLS)


def pack_layers(pack: Pack) -> tuple[FusedLayer, ...]:
    """Return the layers of ``pack`` that could run on tiles, from its first to the first that could not.

    Raises:
        TileError: it reads what is not the layer before it, as a residual sum does, or has no such layers;
            or what rows run is no graph of one node.
    """
    fused_layers: list[FusedLayer] = []
    last: int | None = None
    for item in pack.manifest.row_operators:
        row_graph = _RowGraph.of(pack, item)
        across = row_graph.across()
        if across is None:
            break
        taken = item.inputs[0].row_value
        if len(item.inputs) != 1 or last not in {None, taken}:
            raise TileError(
                f"{pack.name}: {row_graph.output.name} does not read the layer before it, and that alone: "
                "only a chain of layers can be fused"
            )
        weights = max((prod(operand.shape) for operand in item.weights), default=0)
        shapes = [(*value.shape[1:],) for value in (row_graph.inputs[0], row_graph.output)]
        (channels, height, width), (filters, rows, columns) = shapes
        fused_layers.append(
            FusedLayer(
                row_graph.output.name,
                (channels, height, width),
                (filters, rows, columns),
                item.inputs[0].window,
                across,
                weights,
            )
        )
        last = item.output
    if not fused_layers:
        raise TileError(f"{pack.name}: no layer of it runs on tiles")
    return tuple(fused_layers)


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

    def across(self) -> Window | None:
        """Return what it needs of the columns of its first input; None: its kernel needs whole rows."""
        if self.node.op_type in _WINDOWED:
            return self._window()
        if self.node.op_type == "Upsample":
            operator = self._operator(self.node)
            factors = operator.factors if isinstance(operator, Resize) else None
            return None if factors is None else Window(factor=factors[3])
        as_rows = [taken.window for taken in self.item.inputs]
        pairs = zip(as_rows, self.inputs, strict=True)
        fits = all(
            window.fitted(value.shape[3], self.output.shape[3]) == window for window, value in pairs
        )
        return as_rows[0] if fits and self._is_even() else None

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
        """Return what ``node`` computes of whole values; None: no family of operators has it."""
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


class FusedPack:
    """``pack`` on ``device``, its weights streamed. ``bias_bytes``: what is there beside arena and ring.

    Raises:
        TileError: its layers are no chain, or none of them runs on tiles.
    """

    def __init__(self, pack: Pack, device: Device) -> None:
        self.name = pack.name
        self.layers = pack_layers(pack)
        whole = make_plan(prepare(pack, device), ARCHITECTURES["auto"])
        self.bias_bytes = whole.session_bytes + whole.scratch_bytes + whole.resident_bytes

    def predicted(self, configuration: TileConfiguration) -> int:
        """Return the memory of a configuration, with the weights that must be there and the bias."""
        weights = max(weight_bytes(self.layers, group) for group in configuration.groups)
        return predict(self.layers, configuration, self.bias_bytes) + weights

    def macs_ratio(self, configuration: TileConfiguration) -> float:
        """Return the multiplications and additions of a configuration / those of the layers whole."""
        macs = sum(GroupBoxes(self.layers, group).macs for group in configuration.groups)
        return macs / whole_macs(self.layers)

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
            raise TileError(f"{self.name}: no configuration takes less than {limit_bytes:,} bytes")
        return found
