"""What an operator means, as one record: what any part of the program asks of it, once.

Nothing here says what computes it: kernels are rows of the backends' tables (models/runtime/kernels.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from models.network.activations import Arithmetic, Kind
from models.network.names import NCHWC, Op

Role = Literal["data", "weight", "bias", "statistic", "scale", "zero_point", "shape", "parameter"]
Access = Literal[
    "elementwise",
    "windowed",
    "resampling",
    "movement",
    "product",
    "reduction",
    "attention",
    "opaque",
]
#: What becomes of elements: they stay as they are; some of them are selected; numbers are computed; these
#: are integers that stand for numbers by a scale.
Elements = Literal["moved", "selected", "computed", "quantised"]
#: ``by_alpha``: if its attribute alpha is not negative.
KeepsOrder = Literal["no", "yes", "by_alpha"]
#: ``with_last_layer``: what is behind the last layer still is a part of its answer.
Quantisable = Literal["no", "yes", "with_last_layer"]
#: ``others``: all but the first.
Limited = Literal["none", "all", "others", "lengths", "chosen"]
#: As ONNX counts: the operator sets of a domain that gave an operator another schema.
Versions = tuple[int, ...]
#: The newest operator set of ONNX of which all operators here were looked at; not all of it has kernels.
NEWEST_DESCRIBED = 28
#: Reads what a node computes (models/network/operators) from a ``NodeReader`` that has its record.
Reader = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperandRecord:
    """An input of an operator.

    ``axis``: of output channels, from the end where it is negative; None: it has none. ``carries_sign``:
    the result changes its sign if this one and all others that do change theirs. ``of_result``: a scale or
    zero point of what comes out. ``sizes``: its numbers decide how large a result is, without a limit.
    """

    role: Role
    axis: int | None
    carries_sign: bool
    of_result: bool
    sizes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRecord:
    """An operator of ONNX or of ONNX Runtime.

    Attributes:
        name: with its domain in front where that is not ONNX's.
        versions: those that this describes, ascending: all from the first one to ``NEWEST_DESCRIBED``.
        of: the operator of ONNX that it computes fused, blocked or on bytes; else itself.
        attributes: defaults, by name, of those that have one and are read.
        operands: its inputs in order; the last ``variadic`` of them repeat.
        variadic: how many inputs of the last ones repeat as a group; 0: none.
        access: which elements of its operands one of its result is made of.
        elements: what becomes of them.
        function: what it is of each element, or of two in the same position; None: no such function.
        read: reads what a node of it computes; None: nothing of ours computes it or looks into it.
        keeps_order: whether it is a non-decreasing function of one tensor's elements.
        commutes: whether operands may change places.
        jumps: whether a difference in the last digit can change what it makes by anything.
        draws: whether it draws random numbers.
        limited: which results have limits that no number of an operand moves: ``all`` (truth values,
            indices, bytes, what saturates), those behind the first (``others``), ``lengths``, which look at
            no numbers; or ``chosen``: they are numbers of its data, as they are.
        copies: whether each element of its results is one of its first input.
        reshapes: whether the result is its first input under another name, perhaps in another shape.
        passes_weights: whether a weight behind it was one before, in another shape, order or type.
        layer: whether it multiplies by a matrix of weights.
        on_bytes: whether it computes ``of`` on bytes, with scales and zero points among its operands.
        channels_last: whether channels lie last, whatever its attributes say.
        quantisable: whether quantising makes it one of bytes.
    """

    name: Op
    versions: Versions
    of: Op
    attributes: Mapping[str, Any]
    operands: tuple[OperandRecord, ...]
    variadic: int
    access: Access
    elements: Elements
    function: Kind | Arithmetic | None
    read: Reader | None
    keeps_order: KeepsOrder
    commutes: bool
    jumps: bool
    draws: bool
    limited: Limited
    copies: bool
    reshapes: bool
    passes_weights: bool
    layer: bool
    on_bytes: bool
    channels_last: bool
    quantisable: Quantisable

    @property
    def is_blocked(self) -> bool:
        """Whether its tensors have channels in blocks, or one of them has."""
        return self.name.startswith(NCHWC)

    def describes(self, opset: int) -> bool:
        """Return whether this is what the operator means in version ``opset`` of its domain."""
        return self.versions[0] <= opset <= NEWEST_DESCRIBED

    def computes(self, operator: Op) -> bool:
        """Return whether it is ``operator``, plain, fused or blocked, and not on bytes."""
        return self.of is operator and not self.on_bytes

    @property
    def permutes(self) -> bool:
        """Whether it makes all elements of its first input, and no others, in another order or shape."""
        return self.copies and self.passes_weights

    def operand(self, position: int) -> OperandRecord | None:
        """Return what input ``position`` is; None: it takes no such input."""
        beyond = position - len(self.operands)
        if beyond < 0:
            return self.operands[position]
        return self.operands[beyond % self.variadic - self.variadic] if self.variadic else None

    def positions(self, count: int, *roles: Role) -> tuple[int, ...]:
        """Return which of ``count`` inputs have one of ``roles``, ascending."""
        operands = enumerate(map(self.operand, range(count)))
        return tuple(index for index, operand in operands if operand and operand.role in roles)

    def scales(self, count: int) -> tuple[int, ...]:
        """Return which of ``count`` inputs are scales; that of the result is last.

        A zero point is behind its scale.
        """
        positions = self.positions(count, "scale")
        return tuple(sorted(positions, key=lambda index: self._operand(index).of_result))

    def _operand(self, position: int) -> OperandRecord:
        operand = self.operand(position)
        assert operand is not None
        return operand


def _plain(role: Role) -> OperandRecord:
    return OperandRecord(role=role, axis=None, carries_sign=False, of_result=False, sizes=False)


DATA, WEIGHT, BIAS, STATISTIC, SCALE, ZERO_POINT, SHAPE, PARAMETER = map(_plain, get_args(Role))


def along(operand: OperandRecord, axis: int) -> OperandRecord:
    """Return ``operand`` with output channels along ``axis``."""
    return replace(operand, axis=axis)


def signed(operand: OperandRecord) -> OperandRecord:
    """Return ``operand`` whose sign the result has."""
    return replace(operand, carries_sign=True)


def sizing(operand: OperandRecord) -> OperandRecord:
    """Return ``operand`` whose numbers decide how large a result is, without a limit."""
    return replace(operand, sizes=True)


def of_result(operand: OperandRecord) -> OperandRecord:
    """Return ``operand``, a scale or zero point, as that of the result."""
    return replace(operand, of_result=True)


#: A tensor of bytes and how they stand for numbers, and how those of the result do.
BYTES, RESULT = (DATA, SCALE, ZERO_POINT), (of_result(SCALE), of_result(ZERO_POINT))

#: An operator that nothing is known of: it has no trait.
UNKNOWN = OperatorRecord(
    name=Op.Unknown,
    versions=(1,),
    of=Op.Unknown,
    attributes={},
    operands=(),
    variadic=0,
    access="opaque",
    elements="computed",
    function=None,
    read=None,
    keeps_order="no",
    commutes=False,
    jumps=False,
    draws=False,
    limited="none",
    copies=False,
    reshapes=False,
    passes_weights=False,
    layer=False,
    on_bytes=False,
    channels_last=False,
    quantisable="no",
)


def record(
    name: Op,
    versions: Versions,
    operands: tuple[OperandRecord, ...],
    access: Access,
    elements: Elements,
    *,
    of: Op | None = None,
    **traits: Any,
) -> OperatorRecord:
    """Return the record of an operator that has ``traits`` (fields by name) and no others."""
    return replace(
        UNKNOWN,
        name=name,
        versions=versions,
        of=of or name,
        operands=operands,
        access=access,
        elements=elements,
        **traits,
    )
