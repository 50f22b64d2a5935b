"""Several serialised pieces as one graph, which one session runs.

Invariant: the graph has the pieces' nodes in their order, and nothing connects those of different pieces:
all inputs and outputs of all pieces are its own. What one piece hands to the next lies where the caller
binds both, so ONNX Runtime allocates no more than for the pieces one by one, and whatever lies at the same
place is right as long as nodes run in the order of the graph. For that ``models/runtime/sessions.py`` asks
(``open_joined``): of the nodes that could run, ONNX Runtime then takes the first one, unless it was added
when the graph was loaded (a conversion, the body of a function) or tells sizes. So a piece may be joined
only if all of its operators are kernels of ONNX Runtime as they stand.
"""

from collections.abc import Iterable, Sequence

from models.runtime.onnx_fields import (
    GraphField,
    ModelField,
    NodeField,
    OpsetField,
    TensorField,
    ValueField,
)
from models.runtime.wire import Field, WireError, contents, field, fields

_READ = frozenset(GraphField)

_BLOCKED = "com.microsoft.nchwc"
_STANDARD = """
Add AveragePool BatchNormalization Clip Concat Conv ConvInteger DequantizeLinear Div DynamicQuantizeLinear
Elu Erf Exp Flatten Gather Gemm GlobalAveragePool GlobalMaxPool HardSigmoid LayerNormalization LeakyRelu Log
MatMul MatMulInteger Max MaxPool Min Mul Neg PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear
ReduceMean Relu Reshape Resize Selu Sigmoid Slice Softmax Softplus Split Sqrt Sub Tanh Transpose
"""
_MICROSOFT = """
DynamicQuantizeMatMul FusedConv FusedGemm FusedMatMul Gelu MatMulIntegerToFloat NhwcMaxPool QGemm QLinearAdd
QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul
QLinearSigmoid QLinearSoftmax QuickGelu
"""
_KERNELS = {
    "": frozenset(_STANDARD.split()),
    "com.microsoft": frozenset(_MICROSOFT.split()),
}
#: For these types ONNX Runtime adds no conversions: its kernels take them.
JOINED_TYPES = frozenset(("float32", "int8", "int32", "uint8"))


class JoinError(Exception):
    """These pieces cannot be one graph."""


def can_join(graph: bytes) -> bool:
    """Return whether a serialised piece may be one of several, if its values have ``JOINED_TYPES``."""
    try:
        parts = list(fields(_body(graph)))
        return {part.number for part in parts} <= _READ and all(
            _is_kernel(part.data) for part in parts if part.number == GraphField.NODE
        )
    except (JoinError, WireError):
        return False


def is_one(graph: bytes) -> bool:
    """Return whether a serialised piece has a single node: what that allocates is free when it has run."""
    return sum(part.number == GraphField.NODE for part in fields(_body(graph))) == 1


def join_graphs(graphs: Sequence[bytes]) -> bytes:
    """Return one serialised graph that does what ``graphs`` do; all of them can be joined.

    Its inputs are those of the first piece, of the second, and so on; its outputs likewise.

    Raises:
        JoinError: they were written for different versions of ONNX. WireError: one is no graph.
    """
    parts = [
        _renamed(part, str(position))
        for position, graph in enumerate(graphs)
        for part in fields(_body(graph))
        if part.number != GraphField.NAME
    ]
    body = field(GraphField.NAME, "joined") + b"".join(parts)
    return _header(graphs) + field(ModelField.GRAPH, body)


def _header(graphs: Iterable[bytes]) -> bytes:
    """Return what stands in all of ``graphs`` beside their nodes: versions."""
    versions: dict[bytes, bytes] = {}
    newest = 0
    for part in (part for graph in graphs for part in fields(graph)):
        if part.number == ModelField.IR_VERSION:
            newest = max(newest, part.value)
        elif part.number == ModelField.OPSET_IMPORT:
            domain = b"".join(contents(part.data, OpsetField.DOMAIN))
            if versions.setdefault(domain, part.whole) != part.whole:
                raise JoinError("pieces of different versions of ONNX")
    return b"".join((field(ModelField.IR_VERSION, newest), *versions.values()))


def _renamed(part: Field, prefix: str) -> bytes:
    """Return a part of a graph whose values have ``prefix`` before their names."""
    names: tuple[int, ...]
    if part.number == GraphField.NODE:
        names = (NodeField.INPUT, NodeField.OUTPUT)
    else:
        names = (TensorField.NAME,) if part.number == GraphField.INITIALIZER else (ValueField.NAME,)
    kept = (
        field(item.number, prefix.encode() + item.data)
        if item.number in names and item.data  # an input that is left out has no name
        else item.whole
        for item in fields(part.data)
        if part.number != GraphField.NODE or item.number != NodeField.NAME
    )
    return field(part.number, b"".join(kept))


def _is_kernel(node: bytes) -> bool:
    operator = b"".join(contents(node, NodeField.OP_TYPE)).decode("ascii", "replace")
    domain = b"".join(contents(node, NodeField.DOMAIN)).decode("ascii", "replace")
    return domain == _BLOCKED or operator in _KERNELS.get(domain, ())


def _body(graph: bytes) -> bytes:
    bodies = contents(graph, ModelField.GRAPH)
    if len(bodies) != 1:
        raise JoinError("no graph")
    return bodies[0]
