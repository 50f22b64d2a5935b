"""Run chosen pieces of a pack one after the other, every value and weight in memory of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray

from loader.buffers import Buffer
from models.packs.pack import Pack
from models.packs.records.pieces import Operand, Piece
from models.packs.storing import read_span
from pipeline.devices.cpu import CpuDevice
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.shared_memory import roots


def check_dimensions(pack: Pack, piece: Piece | PreparedPiece) -> None:
    """Check that the graph of ``piece`` takes its operands, and no sizes: chunks of any share it."""
    graph = onnx.load_model_from_string(pack.graphs[piece.graph]).graph
    for values, operands in ((graph.input, piece.inputs), (graph.output, piece.outputs)):
        ports = [value.type.tensor_type.shape.dim for value in values]
        assert [len(port) for port in ports] == [len(operand.shape) for operand in operands]
        assert not any(dimension.HasField("dim_value") for port in ports for dimension in port)


class WholeMemory:
    """All weights and all values of a pack, as arrays."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        spans = pack.manifest.spans
        self._weights = Buffer(max(sum(span.length for span in spans), 1))
        for span in spans:
            data = read_span(pack.weights_path, span)
            self._weights.bytes[span.offset : span.offset + span.length] = data
        self._places = roots(Program.as_compiled(pack))
        self.values = {
            root: Buffer(max(pack.manifest.values[root].n_bytes, 1)) for root, _ in self._places
        }

    def array(self, operand: Operand) -> NDArray[Any]:
        if operand.kind == "span":
            start = self._pack.manifest.spans[operand.index].offset + operand.offset
            return self._weights.array(start, operand.dtype, operand.shape)
        root, offset = self._places[operand.index]
        return self.values[root].array(offset + operand.offset, operand.dtype, operand.shape)

    def run(
        self, pieces: Sequence[PreparedPiece], inputs: Mapping[str, NDArray[Any]]
    ) -> list[bytes]:
        """Return what is in the memory of all values afterwards."""
        manifest = self._pack.manifest
        for buffer in self.values.values():
            buffer.bytes[:] = 0
        for port in manifest.inputs:
            whole = Operand(kind="value", index=port.value, dtype=port.dtype, shape=port.shape)
            self.array(whole)[...] = inputs[port.name]
        device = CpuDevice()
        for piece in pieces:
            kernel = device.load(self._pack.graphs[piece.graph])
            kernel.bind(
                [self.array(operand) for operand in piece.inputs],
                [self.array(operand) for operand in piece.outputs],
            )()
        return [buffer.bytes.tobytes() for buffer in self.values.values()]

    def close(self) -> None:
        for buffer in (self._weights, *self.values.values()):
            buffer.close()
