"""Whether a layer gives the same bits in coarser chunks: computed and compared where it is not certain.

Kernels of the blocked layout add up each output channel by itself. Others are matrix products, which ONNX
Runtime divides among threads by the size of the whole, and with it the order of long sums.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.compiler.analysis.graph import NCHWC_DOMAIN, Graph
from models.compiler.analysis.slices import CutPiece, Slice
from models.compiler.cutting.layout import slice_bytes
from models.runtime.sessions import SessionError, open_piece

#: A piece and what it is serialised.
Serialised = tuple[CutPiece, bytes]
_Bytes = NDArray[np.uint8]


class Equality:
    """Compares chunks of layers of ``graph``; layers of the same shapes once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[tuple[tuple[object, ...], ...], bool] = {}

    def holds(self, finest: Sequence[Serialised], coarser: Sequence[Serialised]) -> bool:
        """Return whether ``coarser`` pieces give what the ``finest`` of the same node give, bit for bit."""
        node = self._graph.nodes[finest[0][0].first_node]
        if node.domain == NCHWC_DOMAIN:
            return True
        key = (_key(finest), _key(coarser))
        if key not in self._known:
            self._known[key] = self._same(finest, coarser)
        return self._known[key]

    def _same(self, finest: Sequence[Serialised], coarser: Sequence[Serialised]) -> bool:
        inputs = self._inputs(finest[0][0])
        try:
            one, other = (self._outputs(pieces, inputs) for pieces in (finest, coarser))
        except SessionError:
            return False
        return all(np.array_equal(one[name], other[name]) for name in one)

    def _inputs(self, piece: CutPiece) -> dict[str, _Bytes]:
        """Return numbers for the values that ``piece`` reads, as they are in memory."""
        generator = np.random.default_rng(0)
        arrays = [(name, self._graph.values.get(name)) for name in piece.inputs]
        return {
            name: _flat(generator.standard_normal(array.shape).astype(array.dtype))
            for name, array in arrays
            if array is not None
        }

    def _outputs(
        self, pieces: Sequence[Serialised], inputs: Mapping[str, _Bytes]
    ) -> dict[str, _Bytes]:
        """Return the values that ``pieces`` write, each as a whole.

        Raises:
            SessionError: one of them cannot be loaded or run.
        """
        values = self._graph.values
        results = {name: np.zeros(values[name].n_bytes, np.uint8) for name in pieces[0][0].outputs}
        sessions: dict[bytes, ort.InferenceSession] = {}
        for piece, data in pieces:
            session = sessions.get(data) or open_piece(data)
            sessions[data] = session
            feeds = {
                port.name: self._array(part, inputs)
                for port, part in zip(session.get_inputs(), piece.inputs.values(), strict=True)
            }
            made = _run(session, feeds)
            for part, array in zip(piece.outputs.values(), made, strict=True):
                results[part.name][part.offset :][: array.nbytes] = _flat(array)
        return results

    def _array(self, part: Slice, inputs: Mapping[str, _Bytes]) -> NDArray[Any]:
        dtype = np.dtype(self._graph.array(part.name).dtype)
        if part.name in inputs:
            held = inputs[part.name][part.offset :][: math.prod(part.shape) * dtype.itemsize]
        else:
            held = slice_bytes(self._graph, part)
        return held.view(dtype).reshape(part.shape)


def _key(pieces: Sequence[Serialised]) -> tuple[object, ...]:
    """Return what decides about bits: kernels, and the sizes of what they take."""
    return tuple(
        (data, *(part.shape for part in (*piece.inputs.values(), *piece.outputs.values())))
        for piece, data in pieces
    )


def _run(session: ort.InferenceSession, feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
    try:
        return list(session.run(None, feeds))
    except Exception as exc:  # ONNX Runtime's errors share no base class of their own
        raise SessionError(str(exc)) from exc


def _flat(array: NDArray[Any]) -> _Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
