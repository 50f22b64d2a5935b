"""ONNX's messages as bytes, written without the ONNX library, which a serving process does not load."""

from collections.abc import Sequence

# Fields, as in pieces.py.
_MODEL_VERSION, _GRAPH, _IMPORT = 1, 7, 8
_IMPORT_DOMAIN, _IMPORT_VERSION = 1, 2
_NODE, _NAME, _INPUT, _OUTPUT = 1, 2, 11, 12
_NODE_INPUT, _NODE_OUTPUT, _OPERATOR, _ATTRIBUTE, _DOMAIN = 1, 2, 4, 5, 7
_ATTRIBUTE_NAME, _ATTRIBUTE_INTEGERS, _ATTRIBUTE_TYPE, _TYPE_INTEGERS = 1, 8, 20, 7
_VALUE_NAME, _VALUE_TYPE, _TENSOR, _ELEMENTS, _SHAPE, _AXIS, _LENGTH = 1, 2, 1, 1, 2, 1, 1
_FLOAT = 1

_NUMBER, _BYTES = 0, 2
_NEGATIVE = 1 << 64
#: Of the format of ONNX's files.
_VERSION = 8

#: A tensor of floats: its name and the length of each axis.
Port = tuple[str, tuple[int, ...]]


def node(
    operator: str,
    domain: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    **attributes: Sequence[int],
) -> bytes:
    """Return a node, a message of its own, whose ``attributes`` are lists of integers."""
    return b"".join(
        (
            *(_field(_NODE_INPUT, name) for name in inputs),
            *(_field(_NODE_OUTPUT, name) for name in outputs),
            _field(_OPERATOR, operator),
            *(_field(_ATTRIBUTE, _integers(name, held)) for name, held in attributes.items()),
            _field(_DOMAIN, domain),
        )
    )


def model(
    nodes: Sequence[bytes],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    domains: Sequence[tuple[str, int]],
) -> bytes:
    """Return a model of ``nodes``, with the versions of the ``domains`` that they are from."""
    graph = (
        *(_field(_NODE, each) for each in nodes),
        _field(_NAME, "g"),
        *(_field(_INPUT, _port(each)) for each in inputs),
        *(_field(_OUTPUT, _port(each)) for each in outputs),
    )
    imports = (
        _field(_IMPORT, _field(_IMPORT_DOMAIN, domain) + _field(_IMPORT_VERSION, version))
        for domain, version in domains
    )
    return b"".join((_field(_MODEL_VERSION, _VERSION), _field(_GRAPH, b"".join(graph)), *imports))


def _integers(name: str, numbers: Sequence[int]) -> bytes:
    held = b"".join(map(_varint, numbers))
    return (
        _field(_ATTRIBUTE_NAME, name)
        + _field(_ATTRIBUTE_INTEGERS, held)
        + _field(_ATTRIBUTE_TYPE, _TYPE_INTEGERS)
    )


def _port(port: Port) -> bytes:
    name, lengths = port
    axes = b"".join(_field(_AXIS, _field(_LENGTH, length)) for length in lengths)
    tensor = _field(_ELEMENTS, _FLOAT) + _field(_SHAPE, axes)
    return _field(_VALUE_NAME, name) + _field(_VALUE_TYPE, _field(_TENSOR, tensor))


def _field(number: int, content: int | str | bytes) -> bytes:
    if isinstance(content, int):
        return _varint(number << 3 | _NUMBER) + _varint(content)
    data = content.encode() if isinstance(content, str) else content
    return _varint(number << 3 | _BYTES) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    """Return a number in base 128, least significant group first; a negative one in 64 bits."""
    number %= _NEGATIVE
    groups = bytearray()
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)
