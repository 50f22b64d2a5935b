"""The sessions that steps open, and what these and their bindings take: what plans count.

Invariant: a device whose program says what runs its pieces and row operators (program.py) loads these
sessions and no others, before the first request.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from models.packs.records.pieces import Operand
from pipeline.program.choice import BINDING_BYTES
from pipeline.program.kernels import (
    Chain,
    CopyKernel,
    FillKernel,
    IntegerTask,
    Kernel,
    OrtGraph,
    TableLookup,
)
from pipeline.program.program import PreparedPiece, Program
from pipeline.program.region_plan import (
    Action,
    Area,
    AreaCopy,
    Compute,
    Fill,
    GraphCall,
    WeightGather,
)
from pipeline.program.steps import MOVE_BYTES, Step, regions_of

#: Of a session's bytes, those that it takes whatever it runs. Measured 19 to 23 KB.
SESSION_BYTES = 19_000
#: Of what reads rows of a table, with the reads of one buffer: ranges, jobs, their calls. Measured 20 KB.
LOOKUP_BYTES = 24 << 10

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChainNode:
    """Program number ``program`` on what it reads and makes, of ``shapes``: ``n_bytes`` in a session."""

    program: int
    shapes: tuple[Shape, ...]
    n_bytes: int = field(compare=False)


#: What one session runs, in order: graphs of the pack by number, and chains.
Session = tuple[int | ChainNode, ...]


@dataclass
class Opened:
    """What steps need: sessions, each once, and in each lane ``bindings`` of them and other bytes.

    ``sessions``: how often each is bound. ``together``: bytes that kernels without sessions of their own
    share, each as often as a piece or row operator asks for them; the most is there once for all.
    """

    program: Program
    sessions: Counter[Session] = field(default_factory=Counter)
    bindings: int = 0
    other_bytes: int = 0
    together: Counter[int] = field(default_factory=Counter)
    _held_bytes: int = 0

    def add(self, session: Session, times: int = 1) -> None:
        """Take one more binding, of a session that may be there, or one less (``times`` -1)."""
        self.bindings += times * len(session)
        before, self.sessions[session] = self.sessions[session], self.sessions[session] + times
        if not (before and self.sessions[session]):
            self._held_bytes += times * session_size(self.program, session)
        if not self.sessions[session]:
            del self.sessions[session]

    def bind(self, kernel: Kernel, outputs: Sequence[Shape], times: int = 1) -> None:
        """Take what one more ``kernel`` takes that makes ``outputs``, or one less (``times`` -1)."""
        match kernel:
            case OrtGraph(graph):
                self.add((graph,), times)
            case Chain():
                self.other_bytes += times * kernel.bound_bytes
                least = kernel.shared_elements
                sizes = (math.prod(outputs[index]) for index in kernel.elementwise.makes)
                if least is not None and max(sizes) >= least:
                    self.together[kernel.together_bytes] += times
            case IntegerTask():
                self.other_bytes += times * kernel.bound_bytes
                self.together[kernel.together_bytes] += times
            case TableLookup():
                self.other_bytes += times * LOOKUP_BYTES
            case CopyKernel(pairs):
                self.other_bytes += times * MOVE_BYTES * len(pairs)
            case FillKernel():
                self.other_bytes += times * MOVE_BYTES

    def join(self, pieces: Sequence[PreparedPiece], times: int = 1) -> None:
        """Make one launch of ``pieces``, which were launches of their own, or part them (``times`` -1)."""
        for piece in pieces:
            self.bind(piece.kernel, _shapes(piece.outputs), -times)
        self.add(tuple(map(_in_run, pieces)), times)

    @property
    def together_bytes(self) -> int:
        """What kernels without sessions of their own share: as much as the one that asks for most."""
        return max(+self.together, default=0)

    def n_bytes(self, lanes: int = 1) -> int:
        """Return what sessions, bindings and copies take at most; each of ``lanes`` has the last two."""
        shared = self._held_bytes + self.together_bytes
        return shared + lanes * (BINDING_BYTES * self.bindings + self.other_bytes)


def opened_by(program: Program, steps: Sequence[Step], runs: Sequence[range] = ()) -> Opened:
    """Return what ``steps`` need, where those of each of ``runs`` are one launch."""
    opened = Opened(program)
    for step in steps:
        if isinstance(step, PreparedPiece):
            opened.bind(step.kernel, _shapes(step.outputs))
    for run in runs:
        opened.join(
            [step for step in steps[run.start : run.stop] if isinstance(step, PreparedPiece)]
        )
    for region in regions_of(steps):
        for launch in region.plan.launched:
            _add_launch(opened, region.program, launch)
    return opened


def session_bytes(
    program: Program, steps: Sequence[Step], lanes: int = 1, runs: Sequence[range] = ()
) -> int:
    """Return what sessions, bindings and copies of ``steps`` take at most, ``runs`` in one launch each.

    Equal sessions are one; each of ``lanes`` has its own bindings and copies.
    """
    return opened_by(program, steps, runs).n_bytes(lanes)


def session_size(program: Program, session: Session) -> int:
    """Return what a session takes at most; of several graphs it has what it takes by itself once."""
    parts = (
        part.n_bytes if isinstance(part, ChainNode) else program.graphs[part].session_bytes
        for part in session
    )
    return sum(parts) - SESSION_BYTES * (len(session) - 1)


def _add_launch(opened: Opened, program: Program, launch: Sequence[Action]) -> None:
    """Take one more launch of a region: kernels of a bottleneck, a row operator, or a copy."""
    match launch[0]:
        case Compute():
            opened.add(tuple(item.graph for item in launch if isinstance(item, Compute)))
        case GraphCall(operator, _, output):
            opened.bind(program.row_kernels[operator], [strip_shape(program, output)])
        case AreaCopy() | Fill() | WeightGather():
            opened.other_bytes += MOVE_BYTES


def _in_run(piece: PreparedPiece) -> int | ChainNode:
    """Return what ``piece`` is in a session with others."""
    match piece.kernel:
        case OrtGraph(graph):
            return graph
        case Chain(elementwise=item, node_bytes=int(n_bytes)):
            read, made = item.ports(piece.inputs, piece.outputs)
            return ChainNode(item.program, tuple(_shapes([*read, *made])), n_bytes)
        case Chain() | IntegerTask() | TableLookup() | CopyKernel() | FillKernel():
            raise AssertionError("planned as one of several")


def strip_shape(program: Program, area: Area) -> Shape:
    """Return the shape of a whole strip as kernels have it: [1, channels, rows, columns]."""
    return (1, program.row_values[area.row_value].shape[1], area.rows, area.columns)


def _shapes(operands: Sequence[Operand]) -> list[Shape]:
    return [operand.shape for operand in operands]
