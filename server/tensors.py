"""JSON tensors of the Open Inference Protocol, version 2, to and from NumPy."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from models.manifest import STRINGS, Port
from server.errors import InvalidRequestError, ServiceError
from server.tensor_data import numbers, strings

DATATYPES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
    "BYTES": STRINGS,
}
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}


def _list(value: object) -> object:
    if not isinstance(value, list):
        raise ValueError("not a list")
    return value


class InputTensor(BaseModel):
    """One entry of "inputs"; data is flat or nested, row-major."""

    model_config = ConfigDict(extra="forbid")

    name: str
    shape: list[int] = Field(max_length=16)
    datatype: str
    data: Annotated[Any, AfterValidator(_list)]  # as list[Any] pydantic would copy it
    parameters: dict[str, Any] = {}


class RequestedOutput(BaseModel):
    """One entry of "outputs"."""

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(BaseModel):
    """The body of an infer request."""

    id: str | None = None
    inputs: list[InputTensor]
    outputs: list[RequestedOutput] | None = None
    parameters: dict[str, Any] = {}

    @field_validator("id")
    @classmethod
    def _can_be_sent_back(cls, value: str | None) -> str | None:
        if value is not None:
            value.encode()  # JSON can escape half a character; no response can carry it
        return value


def datatype(dtype: str) -> str:
    """Return the protocol's name of a dtype ("FP32" for "float32"; strings are objects in NumPy)."""
    if dtype == "object":
        return "BYTES"
    return _NAMES.get(dtype, dtype.upper())


def parse_request(body: bytes) -> InferRequest:
    """Parse the body of an infer request.

    Raises:
        InvalidRequestError: empty, not JSON, NaN or infinite numbers in it, or a field is wrong.
    """
    if not body:
        raise InvalidRequestError("the body is empty; an infer request is a JSON object")
    try:
        document = json.loads(body, parse_constant=_refuse_constant)
    except InvalidRequestError:
        raise
    except (ValueError, RecursionError) as exc:
        raise InvalidRequestError(f"the body is not JSON: {exc}") from exc
    try:
        return InferRequest.model_validate(document)
    except ValidationError as exc:
        first = exc.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "body"
        raise InvalidRequestError(f"{field}: {first['msg']}") from exc


_SLACK_VALUES = 1000
_SLACK_BYTES = 1 << 20
_BYTES_A_NUMBER = 64
_BYTES_A_STRING = 64 << 10
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')


def body_limit(ports: Iterable[Port]) -> int:
    """Return how many bytes an infer request for ``ports`` may have: generous, yet bounded."""
    return _SLACK_BYTES + sum(
        math.prod(port.shape) * (_BYTES_A_STRING if port.dtype == STRINGS else _BYTES_A_NUMBER)
        for port in ports
    )


def check_values(body: bytes, ports: Iterable[Port]) -> None:
    """Check that ``body`` has about as many values as the inputs, before any becomes an object.

    Raises:
        InvalidRequestError: it has far more.
    """
    ports = list(ports)
    shapes = [port.shape for port in ports]
    if any(port.dtype == STRINGS for port in ports):
        body = _STRING.sub(b"", body)  # what looks like JSON inside strings is none
    elements = sum(math.prod(shape) for shape in shapes)
    lists = sum(math.prod(shape[:axis]) for shape in shapes for axis in range(len(shape)))
    opened = body.count(b"[") + body.count(b"{")
    if opened > lists + _SLACK_VALUES or body.count(b",") > elements + lists + _SLACK_VALUES:
        raise InvalidRequestError(f"the body has more values than the inputs' {elements} elements")


def _refuse_constant(name: str) -> float:
    raise InvalidRequestError(f"the body has {name}, which is not JSON")


def to_arrays(tensors: Iterable[InputTensor], ports: Iterable[Port]) -> dict[str, NDArray[Any]]:
    """Return the arrays that the tensors hold, each with the dtype and shape of its port.

    Inputs with a default may be left out.

    Raises:
        InvalidRequestError: a tensor is unknown, missing, given twice, or not what its port takes.
    """
    expected = {port.name: port for port in ports}
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in tensors:
        if tensor.name not in expected:
            names = ", ".join(repr(name) for name in expected)
            raise InvalidRequestError(f"unknown input {tensor.name!r}; the model takes {names}")
        if tensor.name in arrays:
            raise InvalidRequestError(f"input {tensor.name!r} is given twice")
        arrays[tensor.name] = _array(tensor, expected[tensor.name])
    for name, port in expected.items():
        if name not in arrays and port.default is None:
            raise InvalidRequestError(f"input {name!r} is missing")
    return arrays


def _array(tensor: InputTensor, port: Port) -> NDArray[Any]:
    where = f"input {tensor.name!r}"
    if tensor.datatype != datatype(port.dtype):
        raise InvalidRequestError(
            f"{where}: datatype {tensor.datatype!r}, the model takes {datatype(port.dtype)}"
        )
    if tuple(tensor.shape) != port.shape:
        raise InvalidRequestError(
            f"{where}: shape {tensor.shape}, the model takes {list(port.shape)}"
        )
    if port.dtype == STRINGS:
        return strings(where, tensor.data, port)
    return numbers(where, tensor.data, port, tensor.datatype)


def check_outputs(wanted: list[RequestedOutput] | None, ports: Iterable[Port]) -> None:
    """Check that every output wanted is one of the model's.

    Raises:
        InvalidRequestError: one is not.
    """
    names = [port.name for port in ports]
    for output in wanted or ():
        if output.name not in names:
            raise InvalidRequestError(
                f"unknown output {output.name!r}; there is {', '.join(names)}"
            )


def to_json(
    outputs: Mapping[str, NDArray[Any]], wanted: list[RequestedOutput] | None
) -> list[dict[str, Any]]:
    """Return "outputs" of an infer response: those wanted, in that order, or all.

    Raises:
        ServiceError: an output has NaN or infinite values, which JSON cannot carry.
    """
    names = list(outputs) if not wanted else [output.name for output in wanted]
    for name in names:
        if outputs[name].dtype.kind == "f" and not np.isfinite(outputs[name]).all():
            raise ServiceError(
                f"output {name!r} has NaN or infinite values; JSON cannot carry them"
            )
    return [
        {
            "name": name,
            "datatype": datatype(outputs[name].dtype.name),
            "shape": list(outputs[name].shape),
            "data": outputs[name].ravel().tolist(),
        }
        for name in names
    ]
