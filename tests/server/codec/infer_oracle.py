"""What an infer request means, by the standard library's JSON and the rules one by one: slow and plain."""

import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.records.ports import Port
from server.codec.datatypes import datatype
from tests.server.codec.mixed_cases import FORMATS

_DEEPEST = 32
_LONGEST_NUMBER = 4096


@dataclass(frozen=True)
class Meaning:
    """Of a request that the model takes."""

    inputs: dict[str, NDArray[Any]]
    #: Name, whether as raw bytes, and how many classes of it.
    outputs: list[tuple[str, bool, int]]
    id: str | None
    timeout_seconds: float | None


class Refused(Exception):  # noqa: N818  it is what happens, not a fault
    """The request is not what the protocol or the model asks for."""


def need(condition: bool) -> None:
    if not condition:
        raise Refused


def meaning(
    body: bytes, ports: Sequence[Port], outputs: Sequence[Port], json_bytes: int | None = None
) -> Meaning:
    """Return what ``body`` asks for, whose first ``json_bytes`` are JSON: None means all.

    Raises:
        Refused: nothing that a model with these ports can answer.
    """
    if json_bytes == 0:
        return Meaning(_bare(body, ports), [(port.name, True, 0) for port in outputs], None, None)
    need(json_bytes is None or json_bytes <= len(body))
    document = _parsed(body[:json_bytes])
    behind = b"" if json_bytes is None else body[json_bytes:]
    need(type(document) is dict and type(document.get("inputs")) is list)
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in document["inputs"]:
        name, array, behind = _tensor(tensor, ports, None if json_bytes is None else behind)
        need(name not in arrays)
        arrays[name] = array
    need(not behind)
    need(set(arrays) == {port.name for port in ports})
    need(type(document.get("id")) in (str, type(None)))
    parameters = _parameters(document)
    is_binary = parameters.get("binary_data_output", False)
    need(type(is_binary) is bool)
    timeout = parameters.get("timeout", 0)
    need(type(timeout) is int and timeout >= 0)
    wanted = _outputs(document.get("outputs"), [port.name for port in outputs], is_binary)
    return Meaning(arrays, wanted, document.get("id"), timeout / 1e6 if timeout else None)


def _parsed(body: bytes) -> Any:
    try:
        text = body.decode()
        need(not text.startswith("\ufeff"))
        document = json.loads(
            text,
            parse_constant=lambda name: need(False),
            parse_float=_float,
            parse_int=_integer,
            object_pairs_hook=_object,
        )
        _check_strings(document, 0)
    except (ValueError, RecursionError) as exc:
        raise Refused from exc
    return document


def _float(text: str) -> float:
    need(len(text) <= _LONGEST_NUMBER and math.isfinite(float(text)))
    return float(text)


def _integer(text: str) -> int | float:
    need(len(text) <= _LONGEST_NUMBER)
    value = int(text)
    return value if -(1 << 63) <= value < 1 << 64 else _float(text)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    need(len({key for key, _ in pairs}) == len(pairs))
    return dict(pairs)


def _check_strings(part: Any, depth: int) -> None:
    if isinstance(part, str):
        part.encode()  # half a character has no bytes: a ValueError
    elif isinstance(part, list | dict):
        need(depth < _DEEPEST)
        for item in [*part, *part.values()] if isinstance(part, dict) else part:
            _check_strings(item, depth + 1)


def _tensor(
    tensor: Any, ports: Sequence[Port], behind: bytes | None
) -> tuple[str, NDArray[Any], bytes]:
    """Name and array of ``tensor``, and what it leaves of the bytes ``behind`` the JSON, if any may be."""
    fields = {"name", "shape", "datatype"}
    need(type(tensor) is dict and fields <= set(tensor) <= fields | {"data", "parameters"})
    port = next((port for port in ports if port.name == tensor["name"]), None)
    if port is None:
        raise Refused
    need(tensor["datatype"] == datatype(port.dtype))
    shape = tensor["shape"]
    need(type(shape) is list and all(type(size) is int for size in shape))
    need(shape == list(port.shape) and len(shape) <= 16)
    parameters = _parameters(tensor)
    need(("data" in tensor) != ("binary_data_size" in parameters))
    if "data" in tensor:
        return port.name, _array(tensor["data"], port), behind or b""
    size = parameters["binary_data_size"]
    need(type(size) is int and behind is not None and 0 <= size <= len(behind))
    assert behind is not None
    return port.name, _raw(behind[:size], port), behind[size:]


def _raw(data: bytes, port: Port) -> NDArray[Any]:
    count = math.prod(port.shape)
    if port.dtype == "bytes":
        texts = []
        while data:
            need(len(data) >= 4)
            (length,) = struct.unpack_from("<I", data)
            need(len(data) >= 4 + length)
            texts.append(_text(data[4 : 4 + length]))
            data = data[4 + length :]
        need(len(texts) == count)
        return _objects(texts, port)
    need(len(data) == count * struct.calcsize(f"<{FORMATS[port.dtype]}"))
    need(port.dtype != "bool" or set(data) <= {0, 1})
    return np.frombuffer(data, np.dtype(port.dtype).newbyteorder("<")).reshape(port.shape)


def _bare(body: bytes, ports: Sequence[Port]) -> dict[str, NDArray[Any]]:
    need(len(ports) == 1)
    (port,) = ports
    if port.dtype != "bytes":
        return {port.name: _raw(body, port)}
    need(math.prod(port.shape) == 1)
    return {port.name: _objects([_text(body)], port)}


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except ValueError as exc:
        raise Refused from exc


def _objects(texts: list[str], port: Port) -> NDArray[Any]:
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(port.shape)


def _parameters(holder: dict[str, Any]) -> dict[str, Any]:
    found = holder.get("parameters", {})
    need(type(found) is dict)
    return dict(found)


def _outputs(wanted: Any, names: list[str], is_binary: bool) -> list[tuple[str, bool, int]]:
    need(wanted is None or type(wanted) is list)
    asked = [_output(item, names, is_binary) for item in wanted or ()]
    need(len({name for name, _, _ in asked}) == len(asked))
    return asked or [(name, is_binary, 0) for name in names]


def _output(item: Any, names: list[str], is_binary: bool) -> tuple[str, bool, int]:
    need(type(item) is dict and item.get("name") in names)
    parameters = _parameters(item)
    binary, classes = parameters.get("binary_data", is_binary), parameters.get("classification", 1)
    need(type(binary) is bool and type(classes) is int and classes > 0)
    return item["name"], binary, classes if "classification" in parameters else 0


def _array(data: Any, port: Port) -> NDArray[Any]:
    need(type(data) is list)
    if any(type(item) is list for item in data):
        data = _rows(data, port.shape)
    need(len(data) == math.prod(port.shape))
    if port.dtype == "bytes":
        need(all(type(item) is str for item in data))
        return _objects(data, port)
    dtype = np.dtype(port.dtype)
    kinds = {"f": (int, float), "i": (int,), "u": (int,), "b": (bool,)}[dtype.kind]
    need(all(type(item) in kinds for item in data))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        need(all(int(limits.min) <= item <= int(limits.max) for item in data))
    with np.errstate(over="ignore"):
        wide = [float(item) for item in data] if dtype.kind == "f" else data
        array = np.array(wide, np.float64 if dtype.kind == "f" else dtype).astype(dtype)
    need(dtype.kind != "f" or bool(np.isfinite(array).all()))
    return array.reshape(port.shape)


def _rows(data: Any, shape: tuple[int, ...]) -> list[Any]:
    """The values of ``data``, nested exactly as ``shape``, one after the other."""
    if not shape:
        return [data]
    need(type(data) is list and len(data) == shape[0])
    return [value for row in data for value in _rows(row, shape[1:])]
