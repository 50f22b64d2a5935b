"""Reads the JSON of an infer request as its chunks arrive: arrays out, the text is never held.

Like a protocol state machine it knows nothing of sockets: whoever has bytes feeds them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from models.packs.records.ports import Port
from server.codec.datatypes import body_limit
from server.codec.fields import (
    InferRequest,
    asked,
    check_tensor,
    matched_inputs,
    parse_fields,
    port_of,
)
from server.codec.messages import ModelRequest
from server.codec.raw.reader import RawTensor, raw_tensor
from server.codec.text.arrays import HeldValues, PortArray
from server.codec.text.skeleton import Skeleton, not_json
from server.codec.text.values import DataText
from server.errors import InvalidRequestError, TooLargeError, shown

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


@dataclass
class _Data:
    """The data of one entry of "inputs"; ``port`` is None while no one knows which input it is."""

    text: DataText
    port: Port | None
    values: PortArray | HeldValues


class RequestReader:
    """Reads one request to a model with these ports; after an error it is of no more use."""

    def __init__(self, ports: Sequence[Port], outputs: Sequence[Port]) -> None:
        self._ports = {port.name: port for port in ports}
        self._outputs = outputs
        self._limit = body_limit(ports)
        self._n_bytes = 0
        self._head = b""  # before the encoding is known
        self._skeleton = Skeleton(len(ports))
        self._data: dict[int, _Data] = {}  # by index in "inputs"
        self._reading: DataText | None = None
        #: Once it has finished: arrays of the request that what follows the JSON fills, in this order.
        self.raw: list[RawTensor] = []

    @property
    def held_bytes(self) -> int:
        """Memory that is held, from above; while ``feed`` runs it is a MiB more at most."""
        held = len(self._head) + len(self._skeleton.text)
        return held + sum(
            data.values.held_bytes + data.text.held_bytes for data in self._data.values()
        )

    @property
    def loose_bytes(self) -> int:
        """Of what is held, what no array of a port is: text, strings, values of a port not named yet."""
        return self.held_bytes - sum(
            data.values.array_bytes
            for data in self._data.values()
            if isinstance(data.values, PortArray)
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
            raise not_json("it ends inside of data")
        fields = parse_fields(self._skeleton.document())
        request = asked(fields, {}, self._outputs)
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

    def _begin_data(self) -> DataText:
        """Find out as far as can be whose data come next."""
        fields = self._skeleton.tensor_fields()
        index = self._skeleton.tensor
        name = fields.get("name")
        port: Port | None = None
        if isinstance(name, str):
            where = f"input {shown(name)}"
            port = port_of(name, self._ports)
            if any(data.port is port for data in self._data.values()):
                raise InvalidRequestError(f"{where} is given twice")
            check_tensor(where, fields.get("datatype"), fields.get("shape"), port)
        elif len(self._ports) == 1:
            port = next(iter(self._ports.values()))
        if index >= len(self._ports):
            raise InvalidRequestError(f"more inputs than the model's {len(self._ports)}")
        where = f"inputs.{index}" if port is None else f"input {shown(port.name)}"
        values = HeldValues(where) if port is None else PortArray(where, port)
        ports = list(self._ports.values()) if port is None else [port]
        data = self._data[index] = _Data(DataText(where, ports, values), port, values)
        return data.text

    def _arrays(self, fields: InferRequest) -> dict[str, NDArray[Any]]:
        arrays: dict[str, NDArray[Any]] = {}
        for index, (where, tensor, port) in enumerate(matched_inputs(fields, self._ports)):
            if tensor.data is not None:
                arrays[port.name] = _filled(where, self._data[index], port)
            else:
                self.raw.append(raw_tensor(where, port, tensor.parameters["binary_data_size"]))
                arrays[port.name] = self.raw[-1].array
        return arrays


def _filled(where: str, data: _Data, port: Port) -> NDArray[Any]:
    """Return the array of ``port``, also where its data came before its name."""
    values = data.values
    if isinstance(values, PortArray):
        return values.array
    if not data.text.layouts.fits(port):
        raise InvalidRequestError(
            f"{where}: data is neither flat nor in rows of shape {list(port.shape)}"
        )
    array = PortArray(where, port)
    values.pour(array)
    return array.array


def _check_encoding(head: bytes) -> None:
    """Refuse what begins like JSON in another encoding; its first bytes say so (RFC 4627, section 3)."""
    if head[:1] == b"{" and b"\0" not in head[:_ENCODING_BYTES]:
        return
    name = next((name for mark, name in _ENCODINGS.items() if head.startswith(mark)), None)
    if name is None and b"\0" in head[:_ENCODING_BYTES]:
        name = "UTF-32" if head[:_ENCODING_BYTES].count(0) > 2 else "UTF-16"
    if name is not None:
        raise not_json(f"it must be UTF-8, and begins like {name}")
