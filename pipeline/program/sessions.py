"""The sessions that steps open, and what these and their bindings take: what plans count.

Invariant: a device that decided what ``Piece.native`` and the ``chain`` of pieces and row operators say
(models/packs/records/decided.py) loads these sessions and no others, before the first request.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from models.packs.choice import BINDING_BYTES
from models.packs.manifest import Manifest
from models.packs.records.decided import Chain
from models.packs.records.pieces import Operand, Piece
from pipeline.program.regions import Action, Area, Call, Compute, Fill, Gather, Move
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
    """What steps need: ``sessions``, each once, and in each lane ``bindings`` of them and other bytes.

    ``together_bytes``: of kernels without sessions of their own, once for all.
    """

    sessions: set[Session] = field(default_factory=set)
    bindings: int = 0
    other_bytes: int = 0
    together_bytes: int = 0

    def add(self, session: Session) -> None:
        """Take one more binding, of a session that may be there."""
        self.sessions.add(session)
        self.bindings += len(session)


def opened_by(manifest: Manifest, steps: Sequence[Step], runs: Sequence[range] = ()) -> Opened:
    """Return what ``steps`` need, where those of each of ``runs`` are one launch."""
    found = Opened()
    inside = {position for run in runs for position in run}
    for run in runs:
        pieces = (step for step in steps[run.start : run.stop] if isinstance(step, Piece))
        found.add(tuple(map(_in_run, pieces)))
    for position, step in enumerate(steps):
        if isinstance(step, Piece) and position not in inside:
            _add_piece(found, step)
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
    found = opened_by(manifest, steps, runs)
    held = sum(_bytes_of(manifest, session) for session in found.sessions)
    return (
        held + found.together_bytes + lanes * (BINDING_BYTES * found.bindings + found.other_bytes)
    )


def _bytes_of(manifest: Manifest, session: Session) -> int:
    """Return what a session takes at most; of several graphs it has what it takes by itself once."""
    parts = (
        part.n_bytes if isinstance(part, ChainNode) else manifest.graphs[part].session_bytes
        for part in session
    )
    return sum(parts) - SESSION_BYTES * (len(session) - 1)


def _add_piece(found: Opened, piece: Piece) -> None:
    if piece.native is not None:
        found.other_bytes += piece.native.bound_bytes
        found.together_bytes = max(found.together_bytes, piece.native.together_bytes)
    elif piece.chain is not None:
        _add_chain(found, piece.chain, _shapes(piece.outputs))
    else:
        found.add((piece.graph,))


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
        found.add((graph_of(manifest, call),))
        return
    _add_chain(found, operator.chain, [strip_shape(manifest, call.output)])


def _add_chain(found: Opened, chain: Chain, outputs: Sequence[Shape]) -> None:
    if not chain.makes:
        return
    found.other_bytes += chain.bound_bytes
    least = chain.shared_elements
    if least is not None and max(math.prod(outputs[made]) for made in chain.makes) >= least:
        found.together_bytes = max(found.together_bytes, chain.together_bytes)


def _in_run(piece: Piece) -> int | ChainNode:
    """Return what ``piece`` is in a session with others."""
    if piece.chain is None:
        return piece.graph
    chain = piece.chain
    assert chain.node_bytes is not None, "planned as one of several"
    read, made = (piece.inputs[at] for at in chain.reads), (piece.outputs[at] for at in chain.makes)
    return ChainNode(chain.program, tuple(_shapes([*read, *made])), chain.node_bytes)


def graph_of(manifest: Manifest, call: Call) -> int:
    """Return the graph that ``call`` runs: of tiles, or of whole rows."""
    operator = manifest.row_operators[call.operator]
    if call.output.columns is None:
        return operator.graph
    assert operator.tile_graph is not None, "planned as tiles"
    return operator.tile_graph


def strip_shape(manifest: Manifest, area: Area) -> Shape:
    """Return the shape of a whole strip as kernels have it: [1, channels, rows, columns]."""
    _, channels, _, width = manifest.row_values[area.row_value].shape
    return (1, channels, area.rows, width if area.columns is None else area.columns.count)


def _shapes(operands: Sequence[Operand]) -> list[Shape]:
    return [operand.shape for operand in operands]
