"""From a message that asks for inference to a request.

Raw tensors are taken out of the message before protobuf reads the rest: it would copy them twice.
"""

import math
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from models.network.fields import STRINGS
from models.packs.records.ports import Port
from server.codec.datatypes import datatype
from server.codec.messages import (
    ModelRequest,
    Signature,
    matched_inputs,
    model_request,
    parse_fields,
)
from server.codec.raw import raw_tensor
from server.errors import InvalidRequestError
from server.grpc.messages.inference_pb2 import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelRepositoryParameter,
)

# Typed contents of a message to the array of an input.

# The field that has the values of a dtype; dtypes that are missing have none.
_FIELDS = {
    "bool": "bool_contents",
    **dict.fromkeys(("int8", "int16", "int32"), "int_contents"),
    "int64": "int64_contents",
    **dict.fromkeys(("uint8", "uint16", "uint32"), "uint_contents"),
    "uint64": "uint64_contents",
    "float32": "fp32_contents",
    "float64": "fp64_contents",
    STRINGS: "bytes_contents",
}


def _contents_array(where: str, port: Port, contents: InferTensorContents) -> NDArray[Any]:
    """Return ``contents`` as the array of ``port``; ``where`` names the input in errors.

    Raises:
        InvalidRequestError: they are of another datatype, too many or too few, or over what it holds.
    """
    field = _FIELDS.get(port.dtype)
    if field is None:
        kind = datatype(port.dtype)
        raise InvalidRequestError(f"{where}: {kind} travels in raw_input_contents alone")
    for found, _ in contents.ListFields():
        if found.name != field:
            raise InvalidRequestError(
                f"{where}: has {found.name}; {datatype(port.dtype)} is in {field}"
            )
    values = getattr(contents, field)
    if len(values) != math.prod(port.shape):
        raise InvalidRequestError(
            f"{where}: {len(values)} values in {field}, shape {list(port.shape)} has "
            f"{math.prod(port.shape)}"
        )
    if port.dtype == STRINGS:
        return _strings(where, values).reshape(port.shape)
    return _numbers(where, port, values).reshape(port.shape)


def _numbers(where: str, port: Port, values: Any) -> NDArray[Any]:
    dtype = np.dtype(port.dtype)
    if dtype.kind in "iu" and dtype.itemsize < 4 and len(values):
        limits = np.iinfo(dtype)
        if min(values) < limits.min or max(values) > limits.max:
            name = datatype(port.dtype)
            raise InvalidRequestError(f"{where}: data has numbers that {name} cannot hold")
    return np.fromiter(values, dtype, len(values))


def _strings(where: str, values: Any) -> NDArray[Any]:
    found: NDArray[Any] = np.empty(len(values), object)
    for index, value in enumerate(values):
        try:
            found[index] = value.decode()
        except UnicodeDecodeError:
            raise InvalidRequestError(f"{where}: element {index} is not UTF-8") from None
    return found


# The message as a whole.

_RAW_FIELD = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_NAME_FIELD = ModelInferRequest.MODEL_NAME_FIELD_NUMBER
# How protobuf writes a field: a number, eight bytes, bytes behind their length, four bytes.
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_MOST_VARINT_BYTES = 10
# Inputs, outputs, parameters and tensors together.
_MOST_FIELDS = 4096
# A byte of typed contents may become eight bytes, which are there twice while they are copied.
_WORK_FACTOR = 10
# Triton's, of models that answer a request several times: ours answer once, with the final response.
_EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
_NO_REQUEST = "the message is no ModelInferRequest"


class GrpcMessage:
    """A message taken apart: ``raw`` tensors, as views of it, and the bytes of all other fields."""

    def __init__(self, message: bytes) -> None:
        """Take ``message`` apart.

        Raises:
            InvalidRequestError: it is no ModelInferRequest.
        """
        rest, model_name = bytearray(), b""
        self.raw: list[memoryview] = []
        view = memoryview(message)
        try:
            for count, (number, start, data, stop) in enumerate(_fields(view)):
                if count == _MOST_FIELDS:
                    raise InvalidRequestError(f"the message has over {_MOST_FIELDS} fields")
                if number == _RAW_FIELD and data is not None:
                    self.raw.append(data)
                else:
                    if number == _NAME_FIELD and data is not None:
                        model_name = bytes(data)
                    rest += view[start:stop]
        except (DecodeError, EOFError):
            raise InvalidRequestError(_NO_REQUEST) from None
        self._rest = bytes(rest)
        #: As ``head`` has it, which takes memory that is not held before this is known.
        self.model_name = model_name.decode("utf-8", "replace")

    @property
    def work_bytes(self) -> int:
        """Upper bound on the bytes of the message and of what protobuf makes of it."""
        return sum(map(len, self.raw)) + _WORK_FACTOR * len(self._rest)

    @cached_property
    def head(self) -> ModelInferRequest:
        """What protobuf makes of all but the raw tensors, once memory is held for that.

        Raises:
            InvalidRequestError: it is no ModelInferRequest.
        """
        try:
            return ModelInferRequest.FromString(self._rest)
        except DecodeError:
            raise InvalidRequestError(_NO_REQUEST) from None

    def request(self, model: Signature, left_seconds: float | None) -> ModelRequest:
        """Return the request to ``model``.

        ``left_seconds``: until the deadline of the call; None: it has none.

        Raises:
            InvalidRequestError: it is not what the model takes. TooLargeError: strings over their limit.
        """
        began = time.perf_counter()
        head = self.head
        parameters = values_of(head.parameters)
        if not isinstance(parameters.get(_EMPTY_FINAL_RESPONSE, False), bool):
            raise InvalidRequestError(f"parameters.{_EMPTY_FINAL_RESPONSE}: not a boolean")
        if self.raw and len(self.raw) != len(head.inputs):
            raise InvalidRequestError(
                f"{len(self.raw)} raw_input_contents for {len(head.inputs)} inputs: all come raw, or none"
            )
        fields = parse_fields(self._document())
        inputs = {}
        found = matched_inputs(fields, model)
        for index, (where, _, port) in enumerate(found):
            contents = head.inputs[index].contents
            if not self.raw:
                inputs[port.name] = _contents_array(where, port, contents)
                continue
            if contents.ByteSize():
                raise InvalidRequestError(f"{where}: both contents and raw_input_contents")
            tensor = raw_tensor(where, port, len(self.raw[index]))
            tensor.feed(self.raw[index])
            tensor.finish()
            inputs[port.name] = tensor.array
        request = model_request(fields, inputs, model, time.perf_counter() - began)
        limits = [each for each in (request.timeout_seconds, left_seconds) if each is not None]
        return request._replace(timeout_seconds=min(limits, default=None))

    def _document(self) -> dict[str, Any]:
        """Return what JSON would say of the request, without values."""
        head = self.head
        return {
            "id": head.id or None,
            "parameters": values_of(head.parameters),
            "inputs": [
                {
                    "name": tensor.name,
                    "datatype": tensor.datatype,
                    "shape": list(tensor.shape),
                    "parameters": _without_size(values_of(tensor.parameters)),
                    "data": [],
                }
                for tensor in head.inputs
            ],
            "outputs": [
                {"name": output.name, "parameters": values_of(output.parameters)}
                for output in head.outputs
            ],
        }


def values_of(
    parameters: Mapping[str, InferParameter] | Mapping[str, ModelRepositoryParameter],
) -> dict[str, Any]:
    """Return ``parameters`` as plain values; one that has none is none."""
    chosen = {key: value.WhichOneof("parameter_choice") for key, value in parameters.items()}
    return {key: getattr(parameters[key], name) for key, name in chosen.items() if name}


def _without_size(parameters: dict[str, Any]) -> dict[str, Any]:
    """Leave out what only bodies of HTTP need: here each raw tensor has its length."""
    return {key: value for key, value in parameters.items() if key != "binary_data_size"}


def _fields(view: memoryview) -> Iterator[tuple[int, int, memoryview | None, int]]:
    """Yield number, first byte, bytes (None: it is none behind a length) and end of each field.

    Raises:
        EOFError: one does not end. DecodeError: one is of no kind.
    """
    position = 0
    while position < len(view):
        start = position
        key, position = _varint(view, position)
        kind, data = key & 7, None
        if kind == _VARINT:
            _, position = _varint(view, position)
        elif kind == _BYTES:
            size, position = _varint(view, position)
            data = view[position : position + size]
            position += size
        elif kind in (_EIGHT, _FOUR):
            position += 8 if kind == _EIGHT else 4
        else:
            raise DecodeError
        if position > len(view):
            raise EOFError
        yield key >> 3, start, data, position


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    """Return the number at ``position``, and where it ends."""
    value = 0
    for index in range(_MOST_VARINT_BYTES):
        if position + index >= len(view):
            raise EOFError
        byte = view[position + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise DecodeError
