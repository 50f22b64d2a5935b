"""Spans that are the same bytes of weights.bin: what layers share is there, and stays in memory, once."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from models.packs.manifest import Manifest
from models.packs.records.spans import Span


class SameSpans:
    """Which of ``spans`` are the same. One without bytes, of another partition, is nobody's."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._at: dict[int, list[int]] = defaultdict(list)
        for number, span in enumerate(spans):
            if span.length:
                self._at[span.file_offset].append(number)

    def first(self, span: int) -> int:
        """Return the number of the first one with the bytes of ``span``."""
        return self._alike(span)[0]

    def n_bytes(self, spans: Iterable[int]) -> int:
        """Return what ``spans`` take in memory where the same ones are there once."""
        return sum(self._spans[span].length for span in set(map(self.first, spans)))

    def with_same(self, spans: Iterable[int]) -> tuple[int, ...]:
        """Return ``spans`` and all that are the same, in order."""
        return tuple(sorted({number for span in spans for number in self._alike(span)}))

    def _alike(self, span: int) -> Sequence[int]:
        found = self._spans[span]
        return self._at[found.file_offset] if found.length else (span,)


def shared_bytes(manifest: Manifest) -> int:
    """Return by how much all weights of layers are more than what they take in memory where they stay."""
    same = SameSpans(manifest.spans)
    return sum(span.length for span in manifest.spans) - same.n_bytes(range(len(manifest.spans)))
