"""What runs a piece, a row operator or a move of a region: a value, chosen once (prepare.py).

Plans count what a kernel takes (sessions.py), and engines bind it (pipeline/devices/pack_kernels.py).
"""

from dataclasses import dataclass
from typing import Literal

from models.packs.records.pieces import Elementwise, Operands

#: How a kernel is one of several in a launch: "freeing" what it allocates when it has run, or "keeping" it
#: until the launch has ended.
Joining = Literal["freeing", "keeping"]


@dataclass(frozen=True, slots=True)
class OrtGraph:
    """Graph number ``graph`` of the pack, in a session; on a GPU the launches that it is lowered to.

    ``resident``: with its weights inside, what cannot be streamed; its results are copied.
    """

    graph: int
    resident: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The program of ``elementwise``, in one pass over what it reads and makes.

    Alone it has no session and takes ``bound_bytes`` when it is bound; what makes ``shared_elements`` or
    more (None: nothing) is computed by threads for which a model takes ``together_bytes``, once. In one
    launch with others it is a node of their session, for its program on arrays of one list of shapes, and
    takes ``node_bytes``, as much as a session of its own; None: it is never one of several.
    """

    elementwise: Elementwise
    bound_bytes: int
    shared_elements: int | None
    together_bytes: int
    node_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerTask:
    """Task number ``task`` of the pack's quantised layers, with the constants in graph ``graph``.

    ``workspace_bytes``: what it may take where more or less does. ``bound_bytes``: what each such piece
    takes when it is bound to memory; ``together_bytes``: what they all share, once for all of a model.
    """

    task: int
    graph: int
    workspace_bytes: int
    bound_bytes: int
    together_bytes: int


#: Reads of pages of tables in flight at once, as many as a pool has threads; four took no less time.
LOOKUP_DEPTH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLookup:
    """Rows of a table that lie in weights.bin, read while a request runs: those that its indices name.

    The table is ``rows`` rows of ``row_bytes`` at the beginning of span ``span``. It reads indices and the
    checksums of pages, and makes the rows. ``buffer_bytes``: pages that are read at once. ``graph_inputs``:
    what graph ``graph`` reads, which does the same with the whole table in memory.
    """

    span: int
    rows: int
    row_bytes: int
    buffer_bytes: int
    graph: int
    graph_inputs: Operands


@dataclass(frozen=True, slots=True)
class CopyKernel:
    """Copies between memory: of each pair the input with the first number to the output with the second."""

    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class FillKernel:
    """Writes ``value`` to all of its output."""

    value: float


Kernel = OrtGraph | Chain | IntegerTask | TableLookup | CopyKernel | FillKernel
