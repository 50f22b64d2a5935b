"""The kernels of a pack on a device: operators on elements in one pass where it can, others as loaded."""

from collections.abc import Sequence
from typing import Any

from models.packs.manifest import Piece
from models.packs.pack import Pack
from pipeline.devices.base import Device, Launch
from pipeline.devices.elementwise.of_pack import PackPrograms, ports, row_ports
from pipeline.devices.elementwise.programs import Program
from pipeline.devices.memory import Memory


class PackKernels:
    """Binds pieces and row operators of ``pack`` on ``device`` to memory."""

    def __init__(self, pack: Pack, device: Device) -> None:
        self._pack = pack
        self._device = device
        one_pass = device.one_pass is not None
        self._programs = PackPrograms(pack.manifest, pack.graphs) if one_pass else None

    def piece(
        self, piece: Piece, inputs: Sequence[Any], outputs: Sequence[Any], scratch: Memory
    ) -> Launch:
        """Return what runs ``piece``, which is not resident.

        Raises:
            DeviceError: it cannot be loaded.
        """
        program = None if self._programs is None else self._programs.piece(piece)
        launch = self._in_one_pass(program, ports(piece), inputs, outputs)
        if launch is not None:
            return launch
        kernel = self._device.load(self._pack.graphs[piece.graph])
        return kernel.bind(inputs, outputs, scratch)

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
