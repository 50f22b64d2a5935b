"""The kernels of a program on a device: those on elements in one pass where it can, others as loaded."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from models.packs.records.pieces import Elementwise, Piece
from pipeline.devices.base import Device, DeviceError, Launch
from pipeline.devices.device_memory import Memory
from pipeline.devices.elementwise.one_pass import OnePass
from pipeline.devices.elementwise.programs import NativeProgram, native_program
from pipeline.program.program import ChainPiece, NativePiece, Program


class PlacedPiece(NamedTuple):
    """A piece, and where in the device's memory its inputs and outputs lie."""

    piece: Piece
    inputs: Sequence[Any]
    outputs: Sequence[Any]


#: A serialised graph, and where its inputs and outputs lie.
_Part = tuple[bytes, Sequence[Any], Sequence[Any]]


class GraphPart(NamedTuple):
    """A graph by its number, and where its inputs and its output lie."""

    graph: int
    inputs: Sequence[Any]
    output: Any


class PackKernels:
    """Binds pieces and row operators of ``program`` on ``device`` to memory."""

    def __init__(self, program: Program, device: Device) -> None:
        self._program = program
        self._graphs = program.pack.graphs
        self.device = device
        self._quantised = None if device.quantised is None else device.quantised.of_model()
        self._one_pass = device.one_pass
        self._jobs = None if device.one_pass is None else device.one_pass.of_model()
        self._joining: dict[int, bool] = {}  # by number of graph, as it was compiled

    def piece(self, placed: PlacedPiece, scratch: Memory) -> Launch:
        """Return what runs a piece, which is not resident.

        Raises:
            DeviceError: it cannot be loaded.
        """
        piece, inputs, outputs = placed
        if isinstance(piece, NativePiece):
            return self._natively(piece, inputs, outputs)
        if isinstance(piece, ChainPiece):
            return self._in_one_pass(piece.elementwise, inputs, outputs)
        kernel = self.device.load(self._graphs[piece.graph])
        return kernel.bind(inputs, outputs, scratch)

    def _natively(
        self, piece: NativePiece, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> Launch:
        """Return what runs a piece of which the device said that it needs no session."""
        if self._quantised is None or piece.quantised is None:
            raise DeviceError(f"the {self.device.name} device has no kernels for quantised layers")
        quantised, graph = self._program.quantised[piece.quantised], self._graphs[piece.graph]
        return self._quantised.bind(quantised, graph, piece.native, inputs, outputs)

    def run(self, run: Sequence[PlacedPiece], scratch: Memory) -> Launch:
        """Return what runs pieces one after the other, in as few kernels as the device can.

        They are not resident, and their values floats of 32 bits. Raises:
            DeviceError: one cannot be loaded.
        """
        launches: list[Launch] = []
        joining = ((placed, self._in_graph(placed)) for placed in run)
        for joins, group in groupby(joining, lambda item: item[1] is not None):
            items = list(group)
            if joins and len(items) > 1:
                launches.append(self._joined([part for _, part in items if part], scratch))
            else:
                launches += [self.piece(placed, scratch) for placed, _ in items]
        return launches[0] if len(launches) == 1 else partial(_one_by_one, tuple(launches))

    def _joined(self, parts: Sequence[_Part], scratch: Memory) -> Launch:
        kernel = self.device.join([graph for graph, _, _ in parts])
        inputs = [array for _, inputs, _ in parts for array in inputs]
        outputs = [array for _, _, outputs in parts for array in outputs]
        return kernel.bind(inputs, outputs, scratch)

    def _in_graph(self, placed: PlacedPiece) -> _Part | None:
        """Return a piece as a part of a larger graph; None: it is a launch of its own."""
        piece, inputs, outputs = placed
        if isinstance(piece, ChainPiece):
            one_pass, program, read, made = self._chain(piece.elementwise, inputs, outputs)
            node = one_pass.node(program, [*read, *made])
            if node is None:
                raise self._other_plan()
            return node, read, made
        if not self._joins_as_it_is(piece.graph):
            return None
        return self._graphs[piece.graph], inputs, outputs

    def _joins_as_it_is(self, graph: int) -> bool:
        if graph not in self._joining:
            self._joining[graph] = self.device.joins(self._graphs[graph])
        return self._joining[graph]

    def row_operator(self, number: int, inputs: Sequence[Any], output: Any) -> Launch:
        """Return what runs row operator ``number`` on inputs and weights.

        Raises:
            DeviceError: it cannot be loaded.
        """
        item = self._program.row_operators[number]
        if number in self._program.row_chains:
            return self._in_one_pass(item.elementwise, inputs, [output])
        return self.device.load(self._graphs[item.graph]).bind(inputs, [output])

    def graphs(self, parts: Sequence[GraphPart]) -> Launch:
        """Return what runs graphs one after the other, as one kernel where the device can.

        Raises:
            DeviceError: one cannot be loaded.
        """
        graphs = [self._graphs[part.graph] for part in parts]
        if len(parts) > 1 and all(self._joins_as_it_is(part.graph) for part in parts):
            inputs = [array for part in parts for array in part.inputs]
            return self.device.join(graphs).bind(inputs, [part.output for part in parts])
        launches = [
            self.device.load(graph).bind(part.inputs, [part.output])
            for graph, part in zip(graphs, parts, strict=True)
        ]
        return launches[0] if len(launches) == 1 else partial(_one_by_one, tuple(launches))

    def _in_one_pass(
        self, item: Elementwise | None, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> Launch:
        """Return what runs a program, of which the device said that it does so."""
        one_pass, program, read, made = self._chain(item, inputs, outputs)
        bound = one_pass.bind(program, [*read, *made], self._jobs)
        if bound is None:
            raise self._other_plan()
        return bound

    def _chain(
        self, item: Elementwise | None, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> tuple[OnePass, NativeProgram, list[Any], list[Any]]:
        """Return a program, what runs it, and what it reads and makes."""
        if self._one_pass is None or item is None:
            raise self._other_plan()
        program = native_program(self._program.programs[item.program])
        if program is None:
            raise self._other_plan()
        return self._one_pass, program, *item.ports(inputs, outputs)

    def _other_plan(self) -> DeviceError:
        return DeviceError(
            f"the {self.device.name} device does not run this chain as the plan has it: "
            "the plan is of a pack as another device runs it"
        )


def _one_by_one(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch()
