"""The sessions that steps open, and what these and their bindings take: what plans count.

Invariant: a device that decided what ``Piece.native`` and the ``chain`` of pieces and row operators say
(models/packs/records/decided.py) loads these sessions and no others, before the first request.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from models.packs.choice import BINDING_BYTES
from models.packs.manifest import Manifest
from models.packs.records.decided import Chain
from models.packs.records.pieces import Operand, Piece
from models.packs.records.programs import Elementwise
from models.packs.records.rows import RowOperator
from pipeline.program.region_plan import Action, Area, Call, Compute, Fill, Gather, Move
from pipeline.program.steps import MOVE_BYTES, Step, regions_of

#: Of a session's bytes, those that it takes whatever it runs. Measured 19 to 23 KB.
SESSION_BYTES = 19_000

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChainNode:
    """Program number ``program`` on what it reads and makes, of ``shapes``: ``n_bytes`` in a session."""

    program: int
    shapes: tuple[Shape, ...]
    n_bytes: int = field(compare=False)


#: What one session runs, in order: graphs of the manifest by number, and chains.
Session = tuple[int | ChainNode, ...]


@dataclass
class Opened:
    """What steps need: sessions, each once, and in each lane ``bindings`` of them and other bytes.

    ``sessions``: how often each is bound. ``together``: bytes that kernels without sessions of their own
    share, each as often as a piece or row operator asks for them; the most is there once for all.
    """

    manifest: Manifest
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
            self._held_bytes += times * _bytes_of(self.manifest, session)
        if not self.sessions[session]:
            del self.sessions[session]

    def join(self, pieces: Sequence[Piece], times: int = 1) -> None:
        """Make one launch of ``pieces``, which were launches of their own, or part them (``times`` -1)."""
        for piece in pieces:
            _add_piece(self, piece, -times)
        self.add(tuple(map(_in_run, pieces)), times)

    @property
    def together_bytes(self) -> int:
        """What kernels without sessions of their own share: as much as the one that asks for most."""
        return max(+self.together, default=0)

    def n_bytes(self, lanes: int = 1) -> int:
        """Return what sessions, bindings and copies take at most; each of ``lanes`` has the last two."""
        shared = self._held_bytes + self.together_bytes
        return shared + lanes * (BINDING_BYTES * self.bindings + self.other_bytes)


def opened_by(manifest: Manifest, steps: Sequence[Step], runs: Sequence[range] = ()) -> Opened:
    """Return what ``steps`` need, where those of each of ``runs`` are one launch."""
    found = Opened(manifest)
    for step in steps:
        if isinstance(step, Piece):
            _add_piece(found, step)
    for run in runs:
        found.join([step for step in steps[run.start : run.stop] if isinstance(step, Piece)])
    for region in regions_of(steps):
        for launch in region.plan.launched:
            _add_launch(found, region.manifest, launch)
    return found


def session_bytes(
    manifest: Manifest, steps: Sequence[Step], lanes: int = 1, runs: Sequence[range] = ()
) -> int:
    """Return what sessions, bindings and copies of ``steps`` take at most, ``runs`` in one launch each.

    Equal sessions are one; each of ``lanes`` has its own bindings and copies.
    """
    return opened_by(manifest, steps, runs).n_bytes(lanes)


def _bytes_of(manifest: Manifest, session: Session) -> int:
    """Return what a session takes at most; of several graphs it has what it takes by itself once."""
    parts = (
        part.n_bytes if isinstance(part, ChainNode) else manifest.graphs[part].session_bytes
        for part in session
    )
    return sum(parts) - SESSION_BYTES * (len(session) - 1)


def _add_piece(found: Opened, piece: Piece, times: int = 1) -> None:
    if piece.native is not None:
        found.other_bytes += times * piece.native.bound_bytes
        found.together[piece.native.together_bytes] += times
    elif piece.chain is not None:
        _add_chain(found, piece, _shapes(piece.outputs), times)
    else:
        found.add((piece.graph,), times)


def _add_launch(found: Opened, manifest: Manifest, launch: Sequence[Action]) -> None:
    """Take one more launch of a region: kernels of a bottleneck, a row operator, or a copy."""
    match launch[0]:
        case Compute():
            found.add(tuple(item.graph for item in launch if isinstance(item, Compute)))
        case Call() as call:
            _add_call(found, manifest, call)
        case Move() | Fill() | Gather():
            found.other_bytes += MOVE_BYTES


def _add_call(found: Opened, manifest: Manifest, call: Call) -> None:
    operator = manifest.row_operators[call.operator]
    if operator.chain is None:
        found.add((call.graph,))
        return
    _add_chain(found, operator, [strip_shape(manifest, call.output)])


def _add_chain(
    found: Opened, item: Piece | RowOperator, outputs: Sequence[Shape], times: int = 1
) -> None:
    chain, elementwise = _chain(item)
    if not elementwise.makes:
        return
    found.other_bytes += times * chain.bound_bytes
    least = chain.shared_elements
    if least is not None and max(math.prod(outputs[made]) for made in elementwise.makes) >= least:
        found.together[chain.together_bytes] += times


def _in_run(piece: Piece) -> int | ChainNode:
    """Return what ``piece`` is in a session with others."""
    if piece.chain is None:
        return piece.graph
    chain, item = _chain(piece)
    assert chain.node_bytes is not None, "planned as one of several"
    read, made = item.ports(piece.inputs, piece.outputs)
    return ChainNode(item.program, tuple(_shapes([*read, *made])), chain.node_bytes)


def _chain(item: Piece | RowOperator) -> tuple[Chain, Elementwise]:
    """Return what a device decided, and of which program."""
    assert item.chain is not None, "asked for where there is one"
    assert item.elementwise is not None, "what a chain is of"
    return item.chain, item.elementwise


def strip_shape(manifest: Manifest, area: Area) -> Shape:
    """Return the shape of a whole strip as kernels have it: [1, channels, rows, columns]."""
    return (1, manifest.row_values[area.row_value].shape[1], area.rows, area.columns)


def _shapes(operands: Sequence[Operand]) -> list[Shape]:
    return [operand.shape for operand in operands]
