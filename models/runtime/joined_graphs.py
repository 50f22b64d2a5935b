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

from models.runtime.wire import Field, WireError, fields, message, number

# Fields of ONNX's messages.
_IR_VERSION, _GRAPH, _OPSET = 1, 7, 8
_NODE, _GRAPH_NAME, _INITIALIZER, _INPUT, _OUTPUT = 1, 2, 5, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _OPERATOR, _DOMAIN = 1, 2, 3, 4, 7
_TENSOR_NAME, _VALUE_NAME = 8, 1
_OPSET_DOMAIN = 1
_READ = frozenset({_NODE, _GRAPH_NAME, _INITIALIZER, _INPUT, _OUTPUT})

_BLOCKED = "com.microsoft.nchwc"
_STANDARD = """
Add AveragePool BatchNormalization Clip Concat Conv Div Elu Erf Exp Flatten Gemm GlobalAveragePool
GlobalMaxPool HardSigmoid LayerNormalization LeakyRelu Log MatMul Max MaxPool Min Mul Neg PRelu Pow
ReduceMean Relu Reshape Resize Selu Sigmoid Slice Softmax Softplus Split Sqrt Sub Tanh Transpose
"""
_MICROSOFT = "FusedConv FusedGemm FusedMatMul Gelu QuickGelu"
_KERNELS = {
    "": frozenset(_STANDARD.split()),
    "com.microsoft": frozenset(_MICROSOFT.split()),
    "layerstream": frozenset({"Chain"}),
}


class JoinError(Exception):
    """These pieces cannot be one graph."""


def can_join(graph: bytes) -> bool:
    """Return whether a serialised piece, whose values are floats of 32 bits, may be one of several."""
    try:
        parts = list(fields(_body(graph)))
        return {part.number for part in parts} <= _READ and all(
            _is_kernel(part.data) for part in parts if part.number == _NODE
        )
    except (JoinError, WireError):
        return False


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
        if part.number != _GRAPH_NAME
    ]
    body = message(_GRAPH_NAME, b"joined") + b"".join(parts)
    return _header(graphs) + message(_GRAPH, body)


def _header(graphs: Iterable[bytes]) -> bytes:
    """Return what stands in all of ``graphs`` beside their nodes: versions."""
    versions: dict[bytes, bytes] = {}
    newest = 0
    for field in (field for graph in graphs for field in fields(graph)):
        if field.number == _IR_VERSION:
            newest = max(newest, field.value)
        elif field.number == _OPSET:
            domain = b"".join(_all(field.data, _OPSET_DOMAIN))
            if versions.setdefault(domain, field.whole) != field.whole:
                raise JoinError("pieces of different versions of ONNX")
    return b"".join((number(_IR_VERSION, newest), *versions.values()))


def _renamed(part: Field, prefix: str) -> bytes:
    """Return a part of a graph whose values have ``prefix`` before their names."""
    names: tuple[int, ...]
    if part.number == _NODE:
        names = (_NODE_INPUT, _NODE_OUTPUT)
    else:
        names = (_TENSOR_NAME,) if part.number == _INITIALIZER else (_VALUE_NAME,)
    kept = (
        message(item.number, prefix.encode() + item.data)
        if item.number in names and item.data  # an input that is left out has no name
        else item.whole
        for item in fields(part.data)
        if part.number != _NODE or item.number != _NODE_NAME
    )
    return message(part.number, b"".join(kept))


def _is_kernel(node: bytes) -> bool:
    operator = b"".join(_all(node, _OPERATOR)).decode("ascii", "replace")
    domain = b"".join(_all(node, _DOMAIN)).decode("ascii", "replace")
    return domain == _BLOCKED or operator in _KERNELS.get(domain, ())


def _body(graph: bytes) -> bytes:
    bodies = _all(graph, _GRAPH)
    if len(bodies) != 1:
        raise JoinError("no graph")
    return bodies[0]


def _all(data: bytes, number: int) -> list[bytes]:
    return [item.data for item in fields(data) if item.number == number]
