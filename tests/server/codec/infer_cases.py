"""Infer requests drawn at random, whole and damaged, and every way to cut them into chunks."""

import json
import math
import random
from collections.abc import Iterator, Sequence
from typing import Any

from models.packs.records.ports import Port
from server.codec.datatypes import DATATYPES, datatype

OUTPUTS = tuple(Port(name=name, dtype="float32", shape=(2,), value=9) for name in ("y", "z"))

_SHAPES = [(), (1,), (3,), (1, 4), (2, 3), (4, 1), (2, 1, 3), (1, 1, 1, 2), (17,), (1, 40)]
_LARGE = [(2, 1500), (3000,), (1500, 1, 2)]
_TEXTS = ["", "a", 'quo"te', "back\\slash", "[1, 2]", "{", "ä€😀", "\0\n", "]" * 9, "x" * 40]
_FLOATS = [0.0, -0.0, 0.1, 1.5, -3e5, 1e-7, 65504.0, 65520.0, 3.4e38, 1e39, 5e-324, 1e308, 1e22]
_INTEGERS = [0, 1, -1, 127, 128, 255, 256, -129, 2**15, 2**31, 2**53 + 1, 2**63, 2**64 - 1, 2**64]
_PARTS = [
    *(bytes([byte]) for byte in b'[]{}:,"\\0123456789+-.eEtfnu \t\r\n\0\x0b\x80\xff'),
    *(b"NaN", b"Infinity", b"null", b"true", b"false", b"[]", b"{}", b",,", b"\\u0061", b"\\ud800"),
    *(b'"data":', b'"name":"x"', b"1e400", b"01", b"1.", b".5", b"/**/", b"\xef\xbb\xbf", b"     "),
]


def draw_ports(rng: random.Random) -> tuple[Port, ...]:
    """One to three inputs."""
    return tuple(
        Port(
            name=name,
            dtype=rng.choice([*DATATYPES.values(), "float32", "float32"]),
            shape=rng.choice(_SHAPES) if rng.random() < 0.97 else rng.choice(_LARGE),
            value=0,
        )
        for name in rng.choice((["x"], ["x"], ["x", "ä"], ["x", "in 1", '"']))
    )


def draw_value(rng: random.Random, dtype: str) -> Any:
    """A value that ``dtype`` can most often hold."""
    if dtype == "bytes":
        return rng.choice(_TEXTS)
    if dtype == "bool":
        return rng.random() < 0.5
    if rng.random() < 0.02:
        return rng.choice([*_FLOATS, *_INTEGERS, True, None, "1", [], {}])
    if dtype.startswith("float"):
        return rng.choice([rng.gauss(0, 1), rng.randrange(-9, 9), round(rng.random(), 2), -0.0])
    return rng.randrange(128)


def nested(values: list[Any], shape: Sequence[int]) -> Any:
    """``values`` in rows of ``shape``."""
    if not shape:
        return values[0] if values else None
    step = len(values) // shape[0]
    return [nested(values[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def draw_document(rng: random.Random, ports: Sequence[Port]) -> dict[str, Any]:
    """A request for ``ports``, most often a right one, with fields in any order."""
    document: dict[str, Any] = {"inputs": _shuffled(rng, [_tensor(rng, port) for port in ports])}
    optional = {
        "id": rng.choice(_TEXTS),
        "outputs": [{"name": name} for name in rng.sample(["y", "z"], rng.randrange(3))],
        "parameters": rng.choice(({}, {"timeout": 1500}, {"a": [{"data": [1]}], "inputs": "x"})),
    }
    document.update({key: optional[key] for key in optional if rng.random() < 0.3})
    return dict(_shuffled(rng, list(document.items())))


def _tensor(rng: random.Random, port: Port) -> dict[str, Any]:
    count = math.prod(port.shape)
    if rng.random() < 0.03:
        count += rng.choice((-1, 1))
    values = [draw_value(rng, port.dtype) for _ in range(count)]
    rows = port.shape and rng.random() < 0.4
    fields = {
        "name": port.name,
        "shape": list(port.shape),
        "datatype": datatype(port.dtype),
        "data": nested(values, port.shape) if rows else values,
    }
    if rng.random() < 0.1:
        fields["parameters"] = rng.choice(({}, {"a": 1}, {"binary_data_size": 4}))
    return dict(_shuffled(rng, list(fields.items())) if rng.random() < 0.4 else fields)


def _shuffled(rng: random.Random, items: list[Any]) -> list[Any]:
    return rng.sample(items, len(items))


def draw_body(rng: random.Random, ports: Sequence[Port]) -> bytes:
    """The text of a request for ``ports``: half of the time damaged."""
    style = rng.choice(
        ({}, {"separators": (",", ":")}, {"indent": 1}, {"separators": (" ,\r\n", "\t: ")})
    )
    text = json.dumps(draw_document(rng, ports), ensure_ascii=rng.random() < 0.5, **style)
    if rng.random() < 0.2:
        text = text.replace(
            *rng.choice((("[", "[\n  "), ("{", "{  \t"), (",", " ,"), ("]", "\r]")))
        )
    body = bytearray(text.encode(rng.choice(["utf-8"] * 40 + ["utf-16", "utf-32-le", "utf-8-sig"])))
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        damage(rng, body)
    return bytes(body)


def damage(rng: random.Random, body: bytearray) -> None:
    """Change some bytes anywhere in ``body``."""
    at = rng.randrange(len(body) + 1)
    match rng.randrange(4):
        case 0:
            body[at:at] = rng.choice(_PARTS)
        case 1:
            del body[at : at + rng.choice((1, 1, 1, 2, 5, 40))]
        case 2:
            part = rng.choice(_PARTS)
            body[at : at + len(part)] = part
        case _:
            start = rng.randrange(len(body) + 1)
            body[at:at] = body[start : start + rng.choice((1, 2, 8, 80))]


def chunks(rng: random.Random, body: bytes) -> Iterator[bytes]:
    """``body`` in pieces of random length, all of one, or one byte each."""
    longest = rng.choice((1, 2, 3, 7, 50, len(body) or 1))
    position = 0
    while position < len(body):
        length = rng.randint(0 if longest > 1 else 1, longest)
        yield body[position : position + length]
        position += length
