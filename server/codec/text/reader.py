"""Reads the JSON of an infer request as its chunks arrive: arrays out, the text is never held.

Like a protocol state machine it knows nothing of sockets: bytes are given to it.
"""

import re
from typing import Any

import orjson
from numpy.typing import NDArray

from models.packs.records.ports import Port
from server.codec.datatypes import body_limit
from server.codec.messages import (
    InferRequest,
    ModelRequest,
    Signature,
    matched_inputs,
    model_request,
    parse_fields,
    port_of,
    shaped_port,
)
from server.codec.raw import RawTensor, raw_tensor
from server.codec.text.values import SPACE, STRING, DataText, HeldText, OpenString, parse
from server.errors import InvalidRequestError, TooLargeError, shown

# The text of a request without the values of its inputs: found as it comes, small, parsed at the end.
#
# Invariant: the path into the document is right for every text that is JSON. For others it does not
# matter, because the whole skeleton is parsed at the end, and what stands for data is a list as they are.

_MAX_BYTES = 128 << 10
_MAX_DEPTH = 32
_MAX_VALUES = 1024
_VALUES_A_PORT = 64
# A string with the colon behind it, where both are there, is one token.
_TOKEN = re.compile(STRING.pattern + rb'(?:[ \t\r\n]*+:)?|["{}\[\]:]', re.DOTALL)
_COLON = ord(":")
_OBJECT = ord("{")
_PAIRS = {ord("}"): _OBJECT, ord("]"): ord("[")}
#: What is open inside an entry of "inputs".
_IN_TENSOR = b"{[{"


class Skeleton:
    """Collects the text of a request to a model with ``n_inputs`` inputs, and finds their data."""

    def __init__(self, n_inputs: int) -> None:
        self.text = bytearray()
        #: Which entry of "inputs" is being read, from 0 on.
        self.tensor = -1
        #: Whether what comes next is the data of that entry, from behind their first bracket on.
        self.at_data = False
        self._max_values = _MAX_VALUES + _VALUES_A_PORT * n_inputs
        self._n_values = 0
        self._begun = False
        self._stack = bytearray()
        self._keys: list[set[bytes]] = []  # of the objects that are open
        self._root_key = self._key = b""
        self._string: OpenString | None = None
        self._string_start = 0
        self._last_string = b""
        self._tensor_start = 0

    def feed(self, block: bytes, start: int) -> int:
        """Take ``block`` from ``start``; return where data begin in it (``at_data``), or its length.

        Raises:
            InvalidRequestError: this cannot be JSON, or not that of an infer request.
            TooLargeError: it is over the limit without the data.
        """
        if not self._stack and not self._is_object(block, start):
            return len(block)
        position = start
        if self._string is not None:
            position = self._string.find_end(block, start)
            if position < 0:
                self._append(block[start:])
                return len(block)
            self._string = None
            self._last_string = bytes(self.text[self._string_start :]) + block[start:position]
        offset = len(self.text) - start  # of the block in the text
        for match in _TOKEN.finditer(block, position):
            token = match[0]
            if len(token) > 1:
                if token[-1] == _COLON:
                    self._end_key(token[: token.rindex(b'"') + 1])
                else:
                    self._last_string = token
                continue
            if token == b"[" and self._is_data():
                self._append(block[start : match.end()])
                self.at_data, self._key = True, b""
                return match.end()
            if token in b"{[":
                self._open(token[0], offset + match.start())
            elif token in b"}]":
                self._close(token[0])
            elif token == b":":  # in another chunk than its key
                self._end_key(self._last_string)
            else:
                self._string = OpenString(block[match.start() :])
                self._string_start = offset + match.start()
                break
        self._append(block[start:])
        return len(block)

    def end_data(self) -> None:
        """Go on behind the last bracket of the data."""
        self.at_data = False
        self._append(b"]")

    def tensor_fields(self) -> dict[str, Any]:
        """Return the fields of the entry of "inputs" that come before its data."""
        fields: dict[str, Any] = _parsed(bytes(self.text[self._tensor_start :]) + b"]}")
        return fields

    def document(self) -> Any:
        """Return the whole, with empty lists where data were.

        Raises:
            InvalidRequestError: it is not JSON, or has far more values than such a request.
        """
        commas = self.text.count(b",")
        if commas > self._max_values and STRING.sub(b"", self.text).count(b",") > self._max_values:
            raise self._too_many_values()
        return _parsed(bytes(self.text.lstrip(SPACE)))

    def _is_object(self, block: bytes, start: int) -> bool:
        """Return whether an object begins here, as a request does; False: there is only white space."""
        rest = block[start:].lstrip(SPACE)
        if rest and not self._begun and rest[:1] != b"{":
            begins = shown(rest[:1].decode("latin-1"))
            raise _not_json(f"the body of an infer request is an object, this begins with {begins}")
        if not rest:
            self._append(block[start:])
        return bool(rest)

    def _append(self, part: bytes) -> None:
        self.text += part
        if len(self.text) > _MAX_BYTES:
            raise TooLargeError(
                f"the body without its data is over the limit of {_MAX_BYTES} bytes"
            )

    def _is_data(self) -> bool:
        return self._key == b"data" and self._root_key == b"inputs" and self._stack == _IN_TENSOR

    def _end_key(self, key: bytes) -> None:
        """Note that the string ``key`` was a key of the innermost object."""
        if b"\\" in key:
            key = orjson.dumps(_parsed(key))
        key = key[1:-1]
        if not self._stack or self._stack[-1] != _OBJECT:
            raise _not_json("a colon outside of an object")
        if key in self._keys[-1]:
            raise InvalidRequestError(f"{shown(key.decode(errors='replace'))} is given twice")
        self._keys[-1].add(key)
        self._count()
        if len(self._stack) == 1:
            self._root_key, self._key = key, b""
        elif len(self._stack) == len(_IN_TENSOR):
            self._key = key

    def _open(self, bracket: int, position: int) -> None:
        if self._begun and not self._stack:
            raise _not_json("something follows its end")
        self._begun = True
        if len(self._stack) == _MAX_DEPTH:
            raise InvalidRequestError(f"the body is nested over {_MAX_DEPTH} deep")
        self._count()
        self._stack.append(bracket)
        if bracket != _OBJECT:
            return
        self._keys.append(set())
        if self._stack == _IN_TENSOR and self._root_key == b"inputs":
            self.tensor += 1
            self._tensor_start = position
            self._key = b""

    def _close(self, bracket: int) -> None:
        if not self._stack or self._stack.pop() != _PAIRS[bracket]:
            raise _not_json("its brackets do not match")
        if _PAIRS[bracket] == _OBJECT:
            self._keys.pop()

    def _count(self) -> None:
        self._n_values += 1
        if self._n_values > self._max_values:
            raise self._too_many_values()

    def _too_many_values(self) -> InvalidRequestError:
        return InvalidRequestError(
            f"the body has more values than {self._max_values}, without those of the inputs"
        )


def _parsed(text: bytes) -> Any:
    try:
        return parse(text)
    except orjson.JSONDecodeError as exc:
        raise _not_json(exc.msg) from None


def _not_json(why: str) -> InvalidRequestError:
    """Return the error of a body that is not JSON."""
    return InvalidRequestError(f"the body is not JSON: {why}")


# The request, as its chunks arrive.

# The text that is worked on at a time: bounds the Python objects that its values are for a moment.
_BLOCK_BYTES = 16 << 10
_ENCODING_BYTES = 4
_ENCODINGS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
    b"\xef\xbb\xbf": "UTF-8 with a byte order mark",
}


class RequestReader:
    """Reads one request to ``model``; after an error it is of no more use."""

    def __init__(self, model: Signature) -> None:
        self._model, self._ports = model, model.inputs
        self._limit = body_limit(self._ports.values())
        self._n_bytes = 0
        self._head = b""  # before the encoding is known
        self._skeleton = Skeleton(len(self._ports))
        self._data: dict[int, DataText | HeldText] = {}  # by index in "inputs"
        self._reading: DataText | HeldText | None = None
        #: Once it has finished: arrays of the request that what follows the JSON fills, in this order.
        self.raw: list[RawTensor] = []

    @property
    def held_bytes(self) -> int:
        """Memory that is held, from above; while ``feed`` runs it is a MiB more at most."""
        held = len(self._head) + len(self._skeleton.text)
        return held + sum(data.held_bytes for data in self._data.values())

    @property
    def loose_bytes(self) -> int:
        """Of what is held, what no array of a port is: text, strings."""
        return self.held_bytes - sum(
            data.values.array_bytes for data in self._data.values() if isinstance(data, DataText)
        )

    def feed(self, chunk: bytes | memoryview) -> None:
        """Take the next bytes of the body, any number of them.

        Raises:
            InvalidRequestError: no request that the model takes begins like this.
            TooLargeError: it is over ``body_limit``.
        """
        self._n_bytes += len(chunk)
        if self._n_bytes > self._limit:
            raise TooLargeError(f"the body is over this model's limit of {self._limit} bytes")
        for start in range(0, len(chunk), _BLOCK_BYTES):
            block = bytes(chunk[start : start + _BLOCK_BYTES])
            if self._n_bytes - len(chunk) + start < _ENCODING_BYTES:
                block = self._head + block
                self._head = b"" if len(block) >= _ENCODING_BYTES else block
                if self._head:
                    continue
                _check_encoding(block)
            self._feed(block)

    def finish(self) -> ModelRequest:
        """Return the request: the JSON has ended. Of tensors in ``raw`` the arrays are still to be filled.

        Takes microseconds, but for data that came before the name of their input.

        Raises:
            InvalidRequestError: it is not whole, or not what the model takes.
        """
        if not self._n_bytes:
            raise InvalidRequestError("the body is empty; an infer request is a JSON object")
        if self._head:
            _check_encoding(self._head)
            self._feed(self._head)
        if self._reading is not None:
            raise _not_json("it ends inside of data")
        fields = parse_fields(self._skeleton.document())
        request = model_request(fields, {}, self._model)
        request.inputs.update(self._arrays(fields))
        return request

    def _feed(self, block: bytes) -> None:
        position = 0
        while position < len(block):
            if self._reading is None:
                position = self._skeleton.feed(block, position)
                if self._skeleton.at_data:
                    self._reading = self._begin_data()
            else:
                position = self._reading.feed(block, position)
                if position < 0:
                    return
                self._reading = None
                self._skeleton.end_data()

    def _begin_data(self) -> DataText | HeldText:
        """Find out, as far as possible, to which input the next data belong."""
        fields = self._skeleton.tensor_fields()
        index = self._skeleton.tensor
        name = fields.get("name")
        port: Port | None = None
        if isinstance(name, str):
            port = port_of(name, self._ports)
            where = self._model.named[name]
            if any(
                isinstance(data, DataText) and data.port.name == name
                for data in self._data.values()
            ):
                raise InvalidRequestError(f"{where} is given twice")
            shape, shapes = fields.get("shape"), self._model.shapes
            port = shaped_port(where, fields.get("datatype"), shape, port, shapes)
            if shapes is not None and shape is None:
                port = None  # how many numbers come is not known yet
        elif len(self._ports) == 1 and self._model.shapes is None:
            port = next(iter(self._ports.values()))
        if index >= len(self._ports):
            raise InvalidRequestError(f"more inputs than the model's {len(self._ports)}")
        data = HeldText() if port is None else DataText(self._model.named[port.name], port)
        self._data[index] = data
        return data

    def _arrays(self, fields: InferRequest) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        for index, (where, tensor, port) in enumerate(matched_inputs(fields, self._model)):
            if tensor.data is not None:
                data = self._data[index]
                text = data if isinstance(data, DataText) else data.read(where, port)
                arrays[port.name] = text.values.array
            else:
                self.raw.append(raw_tensor(where, port, tensor.parameters["binary_data_size"]))
                arrays[port.name] = self.raw[-1].array
        return arrays


def _check_encoding(head: bytes) -> None:
    """Refuse what begins like JSON in another encoding; its first bytes say so (RFC 4627, section 3)."""
    if head[:1] == b"{" and b"\0" not in head[:_ENCODING_BYTES]:
        return
    name = next((name for mark, name in _ENCODINGS.items() if head.startswith(mark)), None)
    if name is None and b"\0" in head[:_ENCODING_BYTES]:
        name = "UTF-32" if head[:_ENCODING_BYTES].count(0) > 2 else "UTF-16"
    if name is not None:
        raise _not_json(f"it must be UTF-8, and begins like {name}")
