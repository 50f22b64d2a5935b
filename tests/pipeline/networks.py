"""Networks of numbers alone, for planners: chunks of several sizes, and how long everything takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from pipeline.planning.estimates import Estimates, OperationTimes
from pipeline.program.kernels import OrtGraph
from pipeline.program.program import PreparedAlternative, PreparedJoin, PreparedPiece, Program
from tests.pipeline.synthetic import PAGE, program

# Seconds of a kernel that has no weights.
_WITHOUT_WEIGHTS = 1e-4


@dataclass(frozen=True)
class Network:
    """``seconds_a_page[n]``: of the kernels of layer n, for each page of weights."""

    program: Program
    layer_of: tuple[int, ...]
    seconds_a_page: tuple[float, ...]
    page_seconds: float
    request_seconds: float = 5e-5

    @property
    def times(self) -> OperationTimes:
        return OperationTimes(
            tuple(map(self._kernel, self.program.pieces)),
            self.read,
            lambda n_bytes: n_bytes / PAGE * self.page_seconds / 4,
        )

    @property
    def estimates(self) -> Estimates:
        return Estimates(self.program, self.times)

    def read(self, n_bytes: int, depth: int) -> float:
        """Return the time of a read while ``depth`` share the disk."""
        return self.request_seconds + depth * n_bytes / PAGE * self.page_seconds

    @property
    def streamable_bytes(self) -> int:
        return sum(span.length for span in self.program.spans if not span.resident)

    @property
    def all_bytes(self) -> int:
        return sum(span.length for span in self.program.spans)

    def _kernel(self, piece: PreparedPiece) -> float:
        if piece.span is None:
            return _WITHOUT_WEIGHTS
        own = self.program.spans[piece.span : piece.span + piece.n_spans]
        pages = sum(span.length for span in own) / PAGE
        return pages * self.seconds_a_page[self.layer_of[piece.span]]


def network(
    chunks: Sequence[Sequence[int]],
    seconds_a_page: Sequence[float],
    page_seconds: float,
) -> Network:
    """Return layers of ``chunks`` (lengths in pages) that can run in pairs or whole.

    One page of weights is always resident; after each layer comes a kernel without weights.
    """
    uses: list[bool] = []
    layer_of = [0]
    for number, layer in enumerate(chunks):
        uses += [True] * len(layer) + [False]
        layer_of += [number] * len(layer)
    made = program([pages for layer in chunks for pages in layer], uses, resident_pages=1)
    found: list[PreparedAlternative] = []
    first = 0
    for layer in chunks:
        count = len(layer)
        for joined in sorted({2, count}):
            if 1 < joined <= count:
                parts = tuple(
                    PreparedJoin(
                        graph=0,
                        kernel=OrtGraph(0, resident=False),
                        n_chunks=min(joined, count - n),
                        scratch_bytes=0,
                        unrolled=None,
                    )
                    for n in range(0, count, joined)
                )
                found.append(PreparedAlternative(first, first + count, parts))
        first += count + 1
    return Network(
        replace(made, alternatives=tuple(found)),
        tuple(layer_of),
        tuple(seconds_a_page),
        page_seconds,
    )


def heavy_tail(page_seconds: float, layers: int = 14) -> Network:
    """Return layers whose weights grow towards the end while their kernels take the same time."""
    pages = [2 + n * n // 4 for n in range(layers)]
    chunks = [[min(16, left) for left in range(count, 0, -16)] for count in pages]
    sums = [sum(layer) for layer in chunks]
    return network(chunks, [2e-3 / count for count in sums], page_seconds)


@st.composite
def networks(draw: st.DrawFn, max_layers: int = 8) -> Network:
    """Draw a network and a disk that is anything from much too fast to much too slow."""
    count = draw(st.integers(1, max_layers))
    lengths = st.lists(st.integers(16, 64), min_size=1, max_size=6)
    chunks = draw(st.lists(lengths, min_size=count, max_size=count))
    speeds = [draw(st.sampled_from([1e-6, 1e-5, 1e-4])) for _ in range(count)]
    return network(chunks, speeds, draw(st.sampled_from([1e-6, 1e-5, 1e-4])))
