"""What whole values and weights take around a place, or between two places, of a network."""

from collections.abc import Callable
from functools import cached_property
from itertools import accumulate

from models.packs.manifest import Manifest
from pipeline.program.lives import lifetimes
from pipeline.program.row_network import RowNetwork
from pipeline.program.shared_memory import roots


class LiveValues:
    """Sums over values that live, in bytes; the parts of those in ``apart`` lie anywhere."""

    def __init__(
        self, manifest: Manifest, network: RowNetwork, apart: frozenset[int] = frozenset()
    ) -> None:
        self._manifest = manifest
        self._network = network
        self._lives = lifetimes(manifest, apart=apart)
        self._roots = [root for root, _ in roots(manifest, apart=apart)]
        self._inputs = {port.value for port in manifest.inputs}
        self._through: dict[tuple[int, int], frozenset[int]] = {}

    @cached_property
    def live(self) -> list[int]:
        """Bytes in use while each piece runs."""
        return self._sums(lambda start, end: (start, end))[:-1]

    @cached_property
    def crossing(self) -> list[int]:
        """Bytes that are kept between piece i - 1 and piece i."""
        return self._sums(lambda start, end: (start + 1, end))

    def weights(self, start: int, end: int) -> int:
        """Return the streamed weights of the pieces [start, end)."""
        return self._weights_before[end] - self._weights_before[start]

    @cached_property
    def _weights_before(self) -> list[int]:
        spans, seen, before = self._manifest.spans, set[int](), [0]
        for piece in self._manifest.pieces:
            new = (
                piece.span is not None and piece.span not in seen and not spans[piece.span].resident
            )
            before.append(
                before[-1] + (spans[piece.span].length if new and piece.span is not None else 0)
            )
            if piece.span is not None:
                seen.add(piece.span)
        return before

    def beside(self, start: int, end: int, touched: frozenset[int]) -> int:
        """Return the bytes of whole values that live while a region of the pieces [start, end) runs.

        ``touched``: the row values that it reads or writes whole.
        """
        after = self._network.read_after(end)
        values = {self._network.values[number].value for number in touched}
        # Rows of an input come from the request, unless others read it later.
        whole = {
            self._roots[value] for value in values if value not in self._inputs or value in after
        }
        return sum(self._lives[root].n_bytes for root in whole | self._live_through(start, end))

    def _live_through(self, start: int, end: int) -> frozenset[int]:
        """Return the values from before the pieces [start, end) to after them."""
        return self._made_before(start) & self._read_after(end)

    def _made_before(self, piece: int) -> frozenset[int]:
        key = (piece, -1)
        if key not in self._through:
            lives = enumerate(self._lives)
            self._through[key] = frozenset(
                i for i, life in lives if life.start < piece and life.n_bytes
            )
        return self._through[key]

    def _read_after(self, piece: int) -> frozenset[int]:
        key = (-1, piece)
        if key not in self._through:
            lives = enumerate(self._lives)
            self._through[key] = frozenset(
                i for i, life in lives if life.end > piece and life.n_bytes
            )
        return self._through[key]

    def _sums(self, when: Callable[[int, int], tuple[int, int]]) -> list[int]:
        count = len(self._manifest.pieces)
        changes = [0] * (count + 3)
        for life in self._lives:
            start, end = when(life.start, life.end)
            if start < end:
                changes[start] += life.n_bytes
                changes[end] -= life.n_bytes
        return list(accumulate(changes[: count + 1]))
