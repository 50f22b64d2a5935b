"""Short, ordinary infer requests, parsed at once: RequestReader takes most of its time whatever the size.

It knows only what it accepts. Of everything else, right or wrong, BodyDecoder has the last word.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from numpy.typing import NDArray

from models.packs.records.ports import Port
from server.codec.datatypes import datatype
from server.codec.fields import check_names, priority, timeout_seconds
from server.codec.messages import ModelRequest, WantedOutput, all_wanted
from server.codec.raw.reader import RawReader, RawTensor, raw_tensor
from server.codec.text.arrays import PortArray
from server.errors import ServiceError

#: A longer text is read as it comes; in so short a one no number is too long.
PLAIN_BYTES = 4096
_REQUEST_KEYS = {"id", "inputs", "outputs", "parameters"}
_OUTPUT_KEYS = {"name", "parameters"}
_PARAMETERS = {"binary_data_output", "priority", "timeout"}
_GIVEN_KEYS = {"name", "shape", "datatype", "data"}
_RAW_KEYS = {"name", "shape", "datatype", "parameters"}
_INTEGER = frozenset({int})


class _OtherError(Exception):
    """This is another request than those that are known here."""


def read_plain(
    text: bytes, raw: bytes, ports: Sequence[Port], outputs: Sequence[Port]
) -> ModelRequest | None:
    """Return what BodyDecoder makes of ``text`` and ``raw`` bytes behind it, or None: it must be asked."""
    if len(text) > PLAIN_BYTES or b"\\" in text:
        return None
    began = time.perf_counter()
    try:
        document = orjson.loads(text)
        _need(type(document) is dict)
        request = _request(document, raw, ports, outputs, began)
        # A key that is there twice is lost in parsing, its quotes are not.
        _need(2 * _count_strings(document) == text.count(b'"'))
        return request
    except (_OtherError, ServiceError, AttributeError, KeyError, TypeError, ValueError):
        return None


def _count_strings(document: dict[str, Any]) -> int:
    """Return how many keys and strings are in a request that is known to be right, but for its data.

    Of its values only names, datatypes and the id are strings: parameters are numbers and booleans here.
    """
    count = len(document) + len(document.get("parameters", ())) + (document.get("id") is not None)
    for tensor in document["inputs"]:
        count += len(tensor) + len(tensor.get("parameters", ())) + 2
    for output in document.get("outputs") or ():
        count += len(output) + len(output.get("parameters", ())) + 1
    return count


def _request(
    document: dict[str, Any],
    raw: bytes,
    ports: Sequence[Port],
    outputs: Sequence[Port],
    began: float,
) -> ModelRequest:
    inputs, identity = document["inputs"], document.get("id")
    _need(
        document.keys() <= _REQUEST_KEYS
        and type(inputs) is list
        and len(inputs) == len(ports)
        and (identity is None or type(identity) is str)
    )
    by_name = {port.name: port for port in ports}
    arrays: dict[str, NDArray[Any]] = {}
    behind: list[RawTensor] = []
    for tensor in inputs:
        arrays[tensor["name"]] = _array(tensor, by_name[tensor["name"]], behind)
    _need(len(arrays) == len(ports))
    if behind or raw:
        reader = RawReader(behind)
        reader.feed(memoryview(raw))
        reader.finish()
    parameters = document.get("parameters", {})
    _need(parameters.keys() <= _PARAMETERS)
    return ModelRequest(
        *(arrays, _wanted(document, parameters, outputs), identity),
        timeout_seconds=timeout_seconds(parameters),
        priority=priority(parameters),
        decoding_seconds=time.perf_counter() - began,
    )


def _wanted(
    document: Mapping[str, Any], parameters: Mapping[str, Any], outputs: Sequence[Port]
) -> tuple[WantedOutput, ...]:
    is_binary = parameters.get("binary_data_output", False)
    _need(type(is_binary) is bool)
    asked = document.get("outputs")
    if asked is None:
        return all_wanted(outputs, is_binary)
    _need(type(asked) is list and all(output.keys() <= _OUTPUT_KEYS for output in asked))
    check_names((output["name"] for output in asked), (port.name for port in outputs))
    named = (WantedOutput(output["name"], _is_raw(output, is_binary)) for output in asked)
    return tuple(named) or all_wanted(outputs, is_binary)


def _is_raw(output: Mapping[str, Any], default: bool) -> bool:
    parameters = output.get("parameters", {})
    value = parameters.get("binary_data", default)
    _need(parameters.keys() <= {"binary_data"} and type(value) is bool)
    return bool(value)


def _array(tensor: dict[str, Any], port: Port, behind: list[RawTensor]) -> NDArray[Any]:
    """Return the array of a tensor whose data are flat, or follow: then it is one of those ``behind``."""
    shape = tensor["shape"]
    _need(
        tensor["datatype"] == datatype(port.dtype)
        and shape == list(port.shape)
        and _INTEGER.issuperset(map(type, shape))
    )
    if "data" not in tensor:
        _need(tensor.keys() == _RAW_KEYS)
        (size,) = tensor["parameters"].values()
        _need(type(size) is int and size == tensor["parameters"]["binary_data_size"] >= 0)
        behind.append(raw_tensor("", port, size))
        return behind[-1].array
    data, array = tensor["data"], PortArray("", port)
    _need(tensor.keys() == _GIVEN_KEYS and type(data) is list and len(data) == array.n_values)
    array.add(data)
    return array.array


def _need(condition: object) -> None:
    if not condition:
        raise _OtherError
