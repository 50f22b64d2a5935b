"""Short, ordinary infer requests, parsed at once: RequestReader takes most of its time whatever the size.

It knows only what it accepts. Of everything else, right or wrong, RequestReader has the last word.
"""

from collections.abc import Sequence
from typing import Any

import orjson
from numpy.typing import NDArray

from models.packs.manifest import Port
from server.codec.datatypes import datatype
from server.codec.fields import check_names
from server.codec.messages import Request, Wanted, all_wanted
from server.codec.text.arrays import PortArray
from server.errors import InvalidRequestError

#: A longer body is read as it comes; in so short a one no number is too long.
PLAIN_BYTES = 4096
_TENSOR_KEYS = {"name", "shape", "datatype", "data"}
_TENSOR_STRINGS = len(_TENSOR_KEYS) + 2


def read_plain(body: bytes, ports: Sequence[Port], outputs: Sequence[Port]) -> Request | None:
    """Return what RequestReader makes of ``body``, or None: it must be asked."""
    if len(body) > PLAIN_BYTES or b"\\" in body:
        return None
    try:
        document = orjson.loads(body)
        if type(document) is not dict:
            return None
        return _request(document, body.count(b'"') // 2, ports, outputs)
    except (InvalidRequestError, AttributeError, KeyError, TypeError, ValueError):
        return None


def _request(
    document: dict[str, Any], n_strings: int, ports: Sequence[Port], outputs: Sequence[Port]
) -> Request | None:
    inputs = document.pop("inputs")
    identity, wanted = document.pop("id", None), document.pop("outputs", None)
    if document or type(inputs) is not list or len(inputs) != len(ports):
        return None
    # A key that is there twice is lost in parsing, its quotes are not.
    known = 1 + len(inputs) * _TENSOR_STRINGS
    if identity is not None:
        known += 2
        if type(identity) is not str:
            return None
    asked = all_wanted(outputs)
    if wanted is not None:
        if not _only_names(wanted):
            return None
        known += 1 + 2 * len(wanted)
        check_names((output["name"] for output in wanted), (port.name for port in outputs))
        asked = tuple(Wanted(output["name"]) for output in wanted) or asked
    if known != n_strings:
        return None
    by_name = {port.name: port for port in ports}
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in inputs:
        array = _array(tensor, by_name[tensor["name"]])
        if array is None:
            return None
        arrays[tensor["name"]] = array
    return Request(arrays, asked, identity) if len(arrays) == len(ports) else None


def _only_names(wanted: Any) -> bool:
    """Return whether ``wanted`` is a list of outputs of which it says the name and nothing else."""
    return type(wanted) is list and all(
        type(output) is dict and len(output) == 1 and type(output.get("name")) is str
        for output in wanted
    )


def _array(tensor: dict[str, Any], port: Port) -> NDArray[Any] | None:
    """Return the array of a tensor whose data are flat; None: it is another, or not that of ``port``."""
    shape, data = tensor["shape"], tensor["data"]
    if tensor.keys() != _TENSOR_KEYS or tensor["datatype"] != datatype(port.dtype):
        return None
    if shape != list(port.shape) or any(type(size) is not int for size in shape):
        return None
    array = PortArray("", port)
    if type(data) is not list or len(data) != array.n_values:
        return None
    array.add(data)
    return array.array
