"""What an infer request means, by the standard library's JSON and the rules one by one: slow and plain."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.manifest import Port
from server.codec.datatypes import datatype

_DEEPEST = 32
_LONGEST_NUMBER = 4096


@dataclass(frozen=True)
class Meaning:
    """Of a request that the model takes."""

    inputs: dict[str, NDArray[Any]]
    outputs: list[str] | None
    id: str | None
    timeout_seconds: float | None


class Refused(Exception):  # noqa: N818  it is what happens, not a fault
    """The request is not what the protocol or the model asks for."""


def need(condition: bool) -> None:
    if not condition:
        raise Refused


def meaning(body: bytes, ports: Sequence[Port], outputs: Sequence[Port]) -> Meaning:
    """Return what ``body`` asks for.

    Raises:
        Refused: nothing that a model with these ports can answer.
    """
    document = _parsed(body)
    need(type(document) is dict and type(document.get("inputs")) is list)
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in document["inputs"]:
        name, array = _tensor(tensor, ports)
        need(name not in arrays)
        arrays[name] = array
    need(set(arrays) == {port.name for port in ports})
    need(type(document.get("id")) in (str, type(None)))
    parameters = _parameters(document, "binary_data_output")
    timeout = parameters.get("timeout", 0)
    need(type(timeout) is int and timeout >= 0)
    wanted = _outputs(document.get("outputs"), [port.name for port in outputs])
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


def _tensor(tensor: Any, ports: Sequence[Port]) -> tuple[str, NDArray[Any]]:
    fields = {"name", "shape", "datatype", "data"}
    need(type(tensor) is dict and fields <= set(tensor) <= fields | {"parameters"})
    need("binary_data_size" not in _parameters(tensor, None))
    port = next((port for port in ports if port.name == tensor["name"]), None)
    if port is None:
        raise Refused
    need(tensor["datatype"] == datatype(port.dtype))
    shape = tensor["shape"]
    need(type(shape) is list and all(type(size) is int for size in shape))
    need(shape == list(port.shape) and len(shape) <= 16)
    return port.name, _array(tensor["data"], port)


def _parameters(holder: dict[str, Any], binary: str | None) -> dict[str, Any]:
    found = holder.get("parameters", {})
    need(type(found) is dict and (binary is None or found.get(binary, False) is False))
    return dict(found)


def _outputs(wanted: Any, names: list[str]) -> list[str] | None:
    if wanted is None:
        return None
    need(type(wanted) is list)
    for item in wanted:
        need(type(item) is dict and item.get("name") in names)
        _parameters(item, "binary_data")
    asked = [item["name"] for item in wanted]
    need(len(set(asked)) == len(asked))
    return asked


def _array(data: Any, port: Port) -> NDArray[Any]:
    need(type(data) is list)
    if any(type(item) is list for item in data):
        data = _rows(data, port.shape)
    need(len(data) == math.prod(port.shape))
    if port.dtype == "bytes":
        need(all(type(item) is str for item in data))
        array = np.empty(len(data), object)
        array[:] = data
        return array.reshape(port.shape)
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
