"""Short, ordinary infer requests, parsed at once: RequestReader takes most of its time whatever the size.

What they are is said where it is for all (fields.py). Of everything that is not short, flat and right,
BodyDecoder has the last word.
"""

import time
from collections.abc import Sequence
from typing import Any

import orjson
from numpy.typing import NDArray

from models.packs.records.ports import Port
from server.codec.fields import asked, matched_inputs, parse_fields
from server.codec.messages import ModelRequest
from server.codec.raw.reader import RawReader, RawTensor, raw_tensor
from server.codec.text.arrays import PortArray
from server.errors import ServiceError

#: A longer text is read as it comes; in so short a one no number is too long.
PLAIN_BYTES = 4096
# With more of them it may be nested, or have values, beyond what a reader of any text takes.
_MOST_BRACKETS, _MOST_COMMAS = 32, 1024


def read_plain(
    text: bytes, raw: bytes, ports: Sequence[Port], outputs: Sequence[Port]
) -> ModelRequest | None:
    """Return what BodyDecoder makes of ``text`` and ``raw`` bytes behind it, or None: it must be asked."""
    if len(text) > PLAIN_BYTES or text.count(b",") > _MOST_COMMAS or b"\\" in text:
        return None
    if text.count(b"[") + text.count(b"{") > _MOST_BRACKETS:
        return None
    began = time.perf_counter()
    arrays: dict[str, NDArray[Any]] = {}
    behind: list[RawTensor] = []
    try:
        document = orjson.loads(text)
        if orjson.dumps(document).count(b'"') != text.count(b'"'):
            return None  # a key that is there twice is lost in parsing, its quotes are not
        fields = parse_fields(document)
        for where, tensor, port in matched_inputs(fields, {port.name: port for port in ports}):
            if tensor.data is None:
                behind.append(raw_tensor(where, port, tensor.parameters["binary_data_size"]))
                arrays[port.name] = behind[-1].array
                continue
            array = PortArray(where, port)
            if len(tensor.data) != array.n_values:
                return None
            array.add(tensor.data)
            arrays[port.name] = array.array
        if behind or raw:
            reader = RawReader(behind)
            reader.feed(memoryview(raw))
            reader.finish()
        return asked(fields, arrays, outputs, time.perf_counter() - began)
    except (ServiceError, TypeError, ValueError):
        return None
