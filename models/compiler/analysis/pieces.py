"""What pieces are made of: nodes of a graph, and slices of its values and constants."""

from dataclasses import dataclass

from models.graphs.graph import OpaqueRegion


@dataclass(frozen=True)
class Slice:
    """Bytes [offset, offset + size of shape) of the value or constant ``name``."""

    name: str
    shape: tuple[int, ...]
    offset: int = 0


@dataclass(frozen=True)
class CutPiece:
    """Nodes [first_node, end_node) of the graph, or one chunk of a single node.

    ``inputs`` and ``outputs`` are keyed by the names that the nodes use. ``region`` makes it a resident
    piece, whose weights are inside it (models/compiler/cutting/piece_models.py). ``page_checksums``: of its
    only weight, a table of which rows are read alone.
    """

    first_node: int
    end_node: int
    inputs: dict[str, Slice]
    outputs: dict[str, Slice]
    weights: tuple[Slice, ...]
    shared_weights: tuple[Slice, ...] = ()
    region: OpaqueRegion | None = None
    page_checksums: Slice | None = None


@dataclass(frozen=True)
class CutAlternative:
    """``pieces`` that do what the pieces [first, end) do, the chunks of one layer, in fewer kernels."""

    first: int
    end: int
    pieces: tuple[CutPiece, ...]
