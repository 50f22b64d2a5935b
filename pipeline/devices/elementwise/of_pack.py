"""The programs of a pack: of its pieces, and of its row operators.

Invariant: a piece and the row operators that make the same come to the same steps, or to none. So a network
has the same bits whole and on rows.
"""

from collections.abc import Sequence
from itertools import groupby

from models.packs.manifest import Manifest
from models.packs.records.pieces import Piece
from models.packs.records.rows import RowOperator
from pipeline.devices.elementwise.one_pass import Wired, steps_of
from pipeline.devices.elementwise.programs import Program, Step, program_of
from pipeline.program.values.unread import unread_values

#: What programs call inputs and outputs.
Ports = tuple[tuple[str, ...], tuple[str, ...]]

# Operators that ONNX Runtime computes as several others.
_TAKEN_APART = frozenset(("mish", "hard_swish"))


class PackPrograms:
    """What of ``manifest``, whose serialised pieces are ``graphs``, runs in one pass."""

    def __init__(self, manifest: Manifest, graphs: Sequence[bytes]) -> None:
        self._manifest = manifest
        self._graphs = graphs
        self._unread = unread_values(manifest)
        self._known: dict[tuple[int, frozenset[str]], Program | None] = {}
        self._alone: set[tuple[int, frozenset[str]]] = set()
        #: By number: None where the pieces of an operator run in ONNX Runtime.
        self._rows: dict[int, Program | None] = {}
        # What pieces make that are something else on rows.
        self._differing: set[int] = set()
        numbered = enumerate(manifest.row_operators)
        for (first, end), group in groupby(numbered, lambda item: _pieces(item[1])):
            self._take_rows(first, end, dict(group))

    def piece(self, piece: Piece) -> Program | None:
        """Return the program of ``piece``, by names of ``ports``; None: there is none."""
        return None if piece.outputs[0].index in self._differing else self.whole(piece)

    def count(self) -> int:
        """Return how many pieces have a program."""
        return sum(self.piece(piece) is not None for piece in self._manifest.pieces)

    def count_alone(self) -> int:
        """Return how many pieces have an operator alone, which ONNX Runtime passes over once, too."""
        pieces = [piece for piece in self._manifest.pieces if self.piece(piece) is None]
        return sum(self._key(piece) in self._alone for piece in pieces)

    def row_operator(self, number: int) -> Program | None:
        """Return what row operator ``number`` has to do, by names of ``row_ports``; None: no program.

        An activation of several operators is done by one of them, and the others have nothing to do.
        """
        return self._rows[number]

    def whole(self, piece: Piece) -> Program | None:
        """Return the program of ``piece`` if none of it ran on rows; None: there is none."""
        if piece.resident is not None:
            return None
        key = self._key(piece)
        if key not in self._known:
            steps = steps_of([Wired(self._graphs[piece.graph], *ports(piece))], key[1])
            if steps and _one_pass_already(steps):
                self._alone.add(key)
            worth = steps and key not in self._alone
            self._known[key] = program_of(steps, key[1]) if steps and worth else None
        return self._known[key]

    def _key(self, piece: Piece) -> tuple[int, frozenset[str]]:
        """Return what tells programs of pieces apart: the graph, and the outputs that somebody reads."""
        outputs = zip(ports(piece)[1], piece.outputs, strict=True)
        kept = (name for name, operand in outputs if operand.index not in self._unread)
        return piece.graph, frozenset(kept)

    def _take_rows(self, first: int, end: int, operators: dict[int, RowOperator]) -> None:
        pieces = self._manifest.pieces[first:end]
        programs = {self.whole(piece) for piece in pieces}
        parts = [Wired(self._graphs[item.graph], *row_ports(item)) for item in operators.values()]
        kept = frozenset(
            _row(item.output)
            for item in operators.values()
            if self._manifest.row_values[item.output].value not in self._unread
        )
        whole = next(iter(programs), None)
        rows = steps_of(parts, kept) if whole is not None and len(programs) == 1 else None
        divided: dict[int, Program] | None = None
        if rows is not None and whole is not None and _kinds(rows) == _kinds(whole.steps):
            divided = _divided(rows, operators)
        if divided is None:
            self._differing.update(piece.outputs[0].index for piece in pieces)
            self._rows.update(dict.fromkeys(operators))
        else:
            self._rows.update(divided)


def _one_pass_already(steps: Sequence[Step]) -> bool:
    """Return whether ONNX Runtime is as fast: it has one node, which it does not take apart."""
    return len(steps) == 1 and len(steps[0].nodes) == 1 and steps[0].operator not in _TAKEN_APART


def ports(piece: Piece) -> Ports:
    """Return what programs call the inputs and outputs of ``piece``."""
    return (
        tuple(f"x{number}" for number in range(len(piece.inputs))),
        tuple(f"y{number}" for number in range(len(piece.outputs))),
    )


def row_ports(item: RowOperator) -> Ports:
    """Return what programs call the inputs, with the weights, and the output of a row operator."""
    inputs = (_row(taken.row_value) for taken in item.inputs)
    weights = (f"w{operand.index}" for operand in item.weights)
    return (*inputs, *weights), (_row(item.output),)


def _row(row_value: int) -> str:
    return f"r{row_value}"


def _pieces(item: RowOperator) -> tuple[int, int]:
    return item.first_piece, item.end_piece


def _kinds(steps: Sequence[Step]) -> list[tuple[str, float, float]]:
    """Return the steps that compute something, by what they compute."""
    return [(step.operator, step.p, step.q) for step in steps if step.nodes]


def _divided(steps: Sequence[Step], operators: dict[int, RowOperator]) -> dict[int, Program] | None:
    """Return what each operator does of ``steps``, whose nodes they are; None: that cannot be told."""
    numbers = list(operators)
    if sorted(node for step in steps for node in step.nodes) != list(range(len(numbers))):
        return None  # an operator has several nodes, and whose a step is nobody knows
    found: dict[int, Program] = {}
    for step in steps:
        own = {numbers[node]: operators[numbers[node]] for node in step.nodes}
        shares = _shares(step, own)
        if shares is None:
            return None
        found |= shares
    return found


def _shares(step: Step, operators: dict[int, RowOperator]) -> dict[int, Program] | None:
    """Return what each of ``operators``, the nodes of ``step`` in their order, does of it.

    It is done where its operands are read for the last time: later they may be gone. Who reads the result
    then hands it on; the others do nothing. None: it does not come to the last one.
    """
    places = {number: row_ports(item) for number, item in operators.items()}
    reading = [n for n, (inputs, _) in places.items() if set(step.operands) <= set(inputs)]
    found: dict[int, Program] = {}
    holding = ""  # the result
    for number, (inputs, (made,)) in places.items():
        does: Step | None = None
        if reading and number == reading[-1]:
            does = Step(step.operator, step.operands, made, step.p, step.q)
        elif holding in inputs:
            does = Step("copy", (holding,), made)
        if does is not None:
            holding = made
        found[number] = Program((does,), frozenset({made})) if does else Program((), frozenset())
    return found if holding == step.result else None
