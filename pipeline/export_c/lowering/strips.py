"""Rows that a step needs at once: which ones of what it reads, and memory for them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reach:
    """Rows [stride i - pad, stride i - pad + span) of ``size`` are needed for row i of a result."""

    stride: int
    pad: int
    span: int
    size: int

    def rows(self, count: int) -> int:
        """Return how many are needed at most for ``count`` rows together."""
        return min((count - 1) * self.stride + self.span, self.size)

    def before(self, other: "Reach") -> "Reach":
        """Return what of its own rows those are needed for that ``other`` needs."""
        return Reach(
            self.stride * other.stride,
            other.pad * self.stride + self.pad,
            (other.span - 1) * self.stride + self.span,
            self.size,
        )


@dataclass(frozen=True, slots=True)
class Strip:
    """Memory of some rows of ``row_bytes``: those that ``reach`` says, None: as many as of the result.

    ``once``: one row, however many are computed.
    """

    row_bytes: int
    reach: Reach | None = None
    once: bool = False

    def n_bytes(self, rows: int) -> int:
        """Return its size for ``rows`` rows of the result."""
        if self.once:
            return self.row_bytes
        return self.row_bytes * (rows if self.reach is None else self.reach.rows(rows))
