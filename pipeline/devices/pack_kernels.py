"""The kernels of a pack on a device: operators on elements in one pass where it can, others as loaded."""

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from models.packs.manifest import Piece
from models.packs.pack import Pack
from pipeline.devices.base import Device, Launch
from pipeline.devices.elementwise.of_pack import PackPrograms, ports, row_ports
from pipeline.devices.elementwise.programs import Program
from pipeline.devices.memory import Memory


class Placed(NamedTuple):
    """A piece, and where in the device's memory its inputs and outputs lie."""

    piece: Piece
    inputs: Sequence[Any]
    outputs: Sequence[Any]


class PackKernels:
    """Binds pieces and row operators of ``pack`` on ``device`` to memory."""

    def __init__(self, pack: Pack, device: Device) -> None:
        self._pack = pack
        self._device = device
        one_pass = device.one_pass is not None
        self._programs = PackPrograms(pack.manifest, pack.graphs) if one_pass else None
        self._joining: dict[int, bool] = {}  # by number of graph

    def piece(self, placed: Placed, scratch: Memory) -> Launch:
        """Return what runs a piece, which is not resident.

        Raises:
            DeviceError: it cannot be loaded.
        """
        piece, inputs, outputs = placed
        launch = self._in_one_pass(self._program(piece), ports(piece), inputs, outputs)
        if launch is not None:
            return launch
        kernel = self._device.load(self._pack.graphs[piece.graph])
        return kernel.bind(inputs, outputs, scratch)

    def run(self, run: Sequence[Placed], scratch: Memory) -> Launch:
        """Return what runs pieces one after the other, in as few kernels as the device can.

        They are not resident, and their values floats of 32 bits. Raises:
            DeviceError: one cannot be loaded.
        """
        launches: list[Launch] = []
        for joins, held in groupby(run, lambda placed: self._joins(placed.piece)):
            pieces = list(held)
            if joins and len(pieces) > 1:
                launches.append(self._joined(pieces, scratch))
            else:
                launches += [self.piece(placed, scratch) for placed in pieces]
        return launches[0] if len(launches) == 1 else partial(_one_by_one, tuple(launches))

    def _joined(self, run: Sequence[Placed], scratch: Memory) -> Launch:
        kernel = self._device.join([self._pack.graphs[placed.piece.graph] for placed in run])
        inputs = [array for placed in run for array in placed.inputs]
        outputs = [array for placed in run for array in placed.outputs]
        return kernel.bind(inputs, outputs, scratch)

    def _joins(self, piece: Piece) -> bool:
        if self._program(piece) is not None:
            return False
        known = self._joining.get(piece.graph)
        if known is None:
            known = self._joining[piece.graph] = self._device.joins(self._pack.graphs[piece.graph])
        return known

    def _program(self, piece: Piece) -> Program | None:
        return None if self._programs is None else self._programs.piece(piece)

    def row_operator(self, number: int, graph: int, inputs: Sequence[Any], output: Any) -> Launch:
        """Return what runs row operator ``number``, by its ``graph`` of rows or of tiles.

        ``inputs``: with its weights. Raises:
            DeviceError: it cannot be loaded.
        """
        program = None if self._programs is None else self._programs.row_operator(number)
        names = row_ports(self._pack.manifest.row_operators[number])
        launch = self._in_one_pass(program, names, inputs, [output])
        if launch is not None:
            return launch
        return self._device.load(self._pack.graphs[graph]).bind(inputs, [output])

    def kind(self, number: int) -> tuple[str, ...] | None:
        """Return what row operator ``number`` does in one pass; None: what its graph says."""
        program = None if self._programs is None else self._programs.row_operator(number)
        return None if program is None else tuple(step.operator for step in program.steps)

    def _in_one_pass(
        self,
        program: Program | None,
        names: tuple[tuple[str, ...], tuple[str, ...]],
        inputs: Sequence[Any],
        outputs: Sequence[Any],
    ) -> Launch | None:
        if program is None or self._device.one_pass is None:
            return None
        named = zip((*names[0], *names[1]), (*inputs, *outputs), strict=True)
        return self._device.one_pass.bind(program, dict(named))


def _one_by_one(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch()
