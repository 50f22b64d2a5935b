"""What the pieces of a network take where they run whole, for each size of ring, and their chunks there."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np

from models.packs.choice import BINDING_BYTES, choose_pieces, chunk_sizes, finest_positions
from models.packs.manifest import Manifest, Piece
from pipeline.planning.rows.live_values import LiveValues
from pipeline.planning.rows.ways import Numbers, Way, Whole

_RINGS = 8
# More than any arena: what must not run whole.
_NEVER = 1 << 60


class WholePieces:
    """Those of ``manifest`` between ``places``; none may read what exists only as its parts, ``apart``."""

    def __init__(
        self,
        manifest: Manifest,
        live: LiveValues,
        places: Sequence[int],
        apart: frozenset[int],
        piece_seconds: Callable[[int], float],
    ) -> None:
        self._manifest = manifest
        self._live = live
        self._places = places
        self._apart = apart
        self._piece_seconds = piece_seconds

    @cached_property
    def most(self) -> int:
        """The most memory that is worth a thought: where everything runs whole."""
        return max(self._live.live, default=0)

    @cached_property
    def rings(self) -> Numbers:
        """The rings that are tried: from the largest chunk in even ratios to what no plan needs."""
        least = max(self._manifest.largest_chunk_bytes, 1)
        most = max(min(self.most, sum(s.length for s in self._manifest.spans)), least)
        known = {size for size in chunk_sizes(self._manifest) if least <= size <= most}
        ladder = {round(least * (most / least) ** (step / (_RINGS - 1))) for step in range(_RINGS)}
        return np.array(_apart(sorted(known | ladder | {least})), np.int64)

    @cached_property
    def cost(self) -> Whole:
        """What runs between each two places, for each of ``rings``."""
        spans, live = self._manifest.spans, self._live.live
        between = list(pairwise(self._places))
        ring = np.zeros((len(self.rings), len(between)), np.int64)
        bound = np.zeros_like(ring)
        numbers = [number for number, (start, end) in enumerate(between) for _ in range(start, end)]
        for level, pieces in enumerate(self._pieces):
            for piece, positions in pieces:
                number = numbers[positions.start]
                bound[level, number] += BINDING_BYTES
                if piece.span is not None and not spans[piece.span].resident:
                    held = sum(s.length for s in spans[piece.span : piece.span + piece.n_spans])
                    ring[level, number] = max(ring[level, number], held)
        arena = np.array([max(live[start:end]) for start, end in between], np.int64)
        for piece, number in zip(self._manifest.pieces, numbers, strict=True):
            if any(item.kind == "value" and item.index in self._apart for item in piece.inputs):
                arena[number] = _NEVER
        seconds = [sum(map(self._piece_seconds, range(start, end))) for start, end in between]
        return Whole(arena, ring, bound, np.array(seconds))

    def beside(self, way: Way) -> Iterator[Piece]:
        """Yield the pieces, in the chunks of its ring, that run whole on a ``way``."""
        inside = {piece for region in way.regions for piece in region.pieces}
        yield from (piece for piece, at in self._pieces[way.level] if at.start not in inside)

    @cached_property
    def _pieces(self) -> list[list[tuple[Piece, range]]]:
        """For each ring the pieces that run where everything is whole."""
        chosen = [choose_pieces(self._manifest, int(ring)) for ring in self.rings]
        return [list(zip(pieces, finest_positions(pieces), strict=True)) for pieces in chosen]


def _apart(sizes: list[int]) -> list[int]:
    """Return ``sizes`` without those that are all too similar to the one before."""
    kept = sizes[:1]
    for size in sizes:
        if size >= 1.25 * kept[-1]:
            kept.append(size)
    return kept
