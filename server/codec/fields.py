"""The fields of an infer request: their types, what the model's ports say to them, parameters."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError

from models.packs.manifest import Port
from server.codec.datatypes import datatype
from server.errors import InvalidRequestError, shown

_MICROSECONDS = 1_000_000
Parameters = dict[str, Any]


class InputTensor(BaseModel):
    """One entry of "inputs"; of its data only whether there are any."""

    model_config = ConfigDict(extra="forbid")

    name: StrictStr
    shape: Annotated[list[StrictInt], Field(max_length=16)]
    datatype: StrictStr
    data: list[Any] | None = None
    parameters: Parameters = Field(default_factory=dict)


class RequestedOutput(BaseModel):
    """One entry of "outputs"."""

    name: StrictStr
    parameters: Parameters = Field(default_factory=dict)


class InferFields(BaseModel):
    """The body of an infer request."""

    id: StrictStr | None = None
    inputs: list[InputTensor]
    outputs: list[RequestedOutput] | None = None
    parameters: Parameters = Field(default_factory=dict)


def parse_fields(document: object) -> InferFields:
    """Return ``document``, a request with empty lists for data, as fields.

    Raises:
        InvalidRequestError: one is missing, unknown or of a wrong type, or asks for binary tensors.
    """
    try:
        fields = InferFields.model_validate(document)
    except ValidationError as exc:
        raise InvalidRequestError(first_error(exc.errors())) from None
    _check_binary("parameters", fields.parameters, "binary_data_output")
    for index, tensor in enumerate(fields.inputs):
        _check_data(f"inputs.{index}", tensor)
    for index, output in enumerate(fields.outputs or ()):
        _check_binary(f"outputs.{index}.parameters", output.parameters, "binary_data")
    return fields


def first_error(errors: Iterable[Mapping[str, Any]]) -> str:
    """Return the first of pydantic's ``errors`` as "field: why", of bounded length."""
    first = next(iter(errors))
    field = ".".join(shown(str(part))[1:-1] for part in first["loc"][-4:]) or "body"
    return f"{field}: {first['msg']}"


def _check_data(where: str, tensor: InputTensor) -> None:
    is_binary = "binary_data_size" in tensor.parameters
    if tensor.data is None and is_binary:
        raise InvalidRequestError(f"{where}: binary tensors are not served; send data as JSON")
    if tensor.data is None:
        raise InvalidRequestError(f"{where}.data: Field required")
    if is_binary:
        raise InvalidRequestError(f"{where}: both data and binary_data_size are given")


def _check_binary(where: str, parameters: Parameters, name: str) -> None:
    wanted = parameters.get(name, False)
    if not isinstance(wanted, bool):
        raise InvalidRequestError(f"{where}.{name}: not a boolean")
    if wanted:
        raise InvalidRequestError(f"{where}.{name}: binary tensors are not served")


def timeout_seconds(parameters: Parameters) -> float | None:
    """Return how long the client waits, of ``parameters.timeout`` in microseconds; None: no limit.

    Raises:
        InvalidRequestError: it is not a whole number from 0 on.
    """
    timeout = parameters.get("timeout", 0)
    if type(timeout) is not int or timeout < 0:
        raise InvalidRequestError("parameters.timeout: not a whole number of microseconds")
    return timeout / _MICROSECONDS or None


def priority(parameters: Parameters) -> int:
    """Return ``parameters.priority``: 1 is the highest, 0 as usual.

    Raises:
        InvalidRequestError: it is not a whole number from 0 on.
    """
    number = parameters.get("priority", 0)
    if type(number) is not int or number < 0:
        raise InvalidRequestError("parameters.priority: not a whole number from 0 on")
    return number


def check_tensor(where: str, kind: object, shape: object, port: Port) -> None:
    """Check a tensor's datatype and shape, each where it has the right type.

    Raises:
        InvalidRequestError: they are not those of ``port``.
    """
    if isinstance(kind, str) and kind != datatype(port.dtype):
        raise InvalidRequestError(
            f"{where}: datatype {shown(kind)}, the model takes {datatype(port.dtype)}"
        )
    if not isinstance(shape, list) or shape == list(port.shape):
        return
    if all(type(size) is int for size in shape):
        text = shown(str(shape))[1:-1]
        raise InvalidRequestError(f"{where}: shape {text}, the model takes {list(port.shape)}")


def check_outputs(wanted: list[RequestedOutput] | None, ports: Iterable[Port]) -> None:
    """Check that every output wanted is one of the model's, and is wanted once.

    Raises:
        InvalidRequestError: one is not.
    """
    names = {port.name for port in ports}
    asked: set[str] = set()
    for output in wanted or ():
        if output.name not in names:
            there = ", ".join(repr(name) for name in sorted(names))
            raise InvalidRequestError(f"unknown output {shown(output.name)}; there is {there}")
        if output.name in asked:
            raise InvalidRequestError(f"output {shown(output.name)} is asked for twice")
        asked.add(output.name)
