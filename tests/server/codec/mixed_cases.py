"""Infer requests drawn at random: tensors partly JSON and partly raw, with headers that may lie."""

import json
import random
import struct
from collections.abc import Sequence
from typing import Any

from models.packs.records.ports import Port
from tests.server.codec.infer_cases import damage, draw_body, draw_document

#: What the standard library calls each dtype.
FORMATS = {
    "bool": "?",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}
_ODD_FLOATS = [float("nan"), float("inf"), float("-inf"), -0.0]

#: A body, and what Inference-Header-Content-Length says of it, if anything.
Sent = tuple[bytes, int | None]


def packed(dtype: str, values: Sequence[Any]) -> bytes:
    """``values`` as the extension has them; struct.error and the like: the dtype has none of these."""
    if dtype == "bytes":
        return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in values)
    return struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values)


def draw_sent(rng: random.Random, ports: Sequence[Port]) -> Sent:
    """A request for ``ports``: JSON alone, mixed, or without any JSON; often damaged."""
    kind = rng.random()
    if kind < 0.4:
        body = draw_body(rng, ports)
        return body, rng.choice((None, None, None, len(body), len(body) + 1, rng.randrange(99)))
    if kind < 0.5:
        return _bare(rng, ports), 0
    return _mixed(rng, ports)


def _bare(rng: random.Random, ports: Sequence[Port]) -> bytes:
    (tensor,) = draw_document(rng, ports[:1])["inputs"]
    values = _flat(tensor["data"])
    try:
        body = packed(ports[0].dtype, values)
    except (struct.error, OverflowError, AttributeError, TypeError):
        return b""
    if ports[0].dtype == "bytes" and rng.random() < 0.8:
        body = body[4:]
    return body + b"x" * (rng.random() < 0.1)


def _mixed(rng: random.Random, ports: Sequence[Port]) -> Sent:
    document = draw_document(rng, ports)
    by_name = {port.name: port for port in ports}
    raw = b"".join(_made_raw(rng, each, by_name[each["name"]]) for each in document["inputs"])
    if rng.random() < 0.3:
        document["parameters"] = {"binary_data_output": rng.choice((True, False, 1))}
    if rng.random() < 0.3:
        document["outputs"] = [{"name": "y", "parameters": _output_parameters(rng)}]
    text = bytearray(json.dumps(document, ensure_ascii=rng.random() < 0.5).encode())
    behind = bytearray(raw)
    if rng.random() < 0.15:
        damage(rng, text)
    if rng.random() < 0.15:
        damage(rng, behind)
    says = len(text) + (rng.choice((-1, 1, 7, 10**17)) if rng.random() < 0.1 else 0)
    return bytes(text + behind), None if rng.random() < 0.03 else says


def _output_parameters(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if rng.random() < 0.5:
        found["binary_data"] = rng.choice((True, False, True, False, 0, "yes"))
    if rng.random() < 0.4:
        found["classification"] = rng.choice((0, 1, 3, -1, True, 1.0))
    return found


def _made_raw(rng: random.Random, tensor: dict[str, Any], port: Port) -> bytes:
    """Take the data out of ``tensor``, most often; return them as raw bytes."""
    if rng.random() < 0.3:
        return b""
    values = _flat(tensor["data"])
    if port.dtype.startswith("float") and values and rng.random() < 0.3:
        values[rng.randrange(len(values))] = rng.choice(_ODD_FLOATS)
    try:
        raw = packed(port.dtype, values)
    except (struct.error, OverflowError, AttributeError, TypeError):
        return b""
    del tensor["data"]
    size = len(raw) + (rng.choice((-1, 1, 2**63, -len(raw))) if rng.random() < 0.05 else 0)
    tensor["parameters"] = {"binary_data_size": size}
    return raw


def _flat(data: Any) -> list[Any]:
    if not isinstance(data, list):
        return [data]
    return [value for item in data for value in _flat(item)]
