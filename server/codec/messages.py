"""What an infer request asks and what answers it, whatever carries them: fields and their types."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import orjson
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)

from models.network.fields import STRINGS
from models.packs.pack import Pack
from models.packs.records.ports import Port
from server.codec.datatypes import DATATYPES, datatype
from server.errors import InvalidRequestError, few, shown

if TYPE_CHECKING:
    from models.packs.shapes import PackShapes


def parsed_object(body: bytes | bytearray) -> dict[str, Any]:
    """Return the JSON object that ``body`` is.

    Raises:
        InvalidRequestError: it is none.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequestError(f"the body is not JSON: {exc.msg}") from None
    if not isinstance(document, dict):
        raise InvalidRequestError("the body is not a JSON object")
    return document


class WantedOutput(NamedTuple):
    """An output that is asked for: raw bytes or JSON; its best ``n_classes`` instead of all, if any."""

    name: str
    is_binary: bool = False
    n_classes: int = 0


#: The input that holds a text in place of all others, of a model that takes texts.
TEXT = "text"
TEXT_PORT = Port(name=TEXT, value=0, dtype=STRINGS, shape=(1,))


class Signature:
    """What a model takes and gives: ``inputs`` and ``outputs`` by name, in the order of its manifest.

    ``accepts_text``: a request may have one string, called ``TEXT``, in place of its tokens. ``shapes``: of
    a model that has several, of which ``inputs`` are the largest.
    """

    def __init__(
        self,
        inputs: Iterable[Port],
        outputs: Iterable[Port],
        accepts_text: bool = False,
        shapes: "PackShapes | None" = None,
    ) -> None:
        self.inputs = {port.name: port for port in inputs}
        self.accepts_text = accepts_text
        if accepts_text:
            self.inputs[TEXT] = TEXT_PORT
        #: How errors name each input.
        self.named = {name: f"input {shown(name)}" for name in self.inputs}
        self.outputs = {port.name: port for port in outputs}
        self.shapes = shapes
        #: What a request asks for that names no output: as JSON (False), or raw (True).
        self.all_outputs = {
            is_binary: tuple(WantedOutput(name, is_binary) for name in self.outputs)
            for is_binary in (False, True)
        }

    def check_shapes(self, ports: Iterable[Port]) -> None:
        """Check that ``ports``, as a request has them, are of one shape of the model.

        Raises:
            InvalidRequestError: they are of none.
        """
        if self.shapes is None:
            return
        from models.packs.shapes import UnknownShapeError

        try:
            self.shapes.find({port.name: port.shape for port in ports})
        except UnknownShapeError as exc:
            raise InvalidRequestError(str(exc)) from None


def signature_of(pack: Pack) -> Signature:
    """Return what the model of ``pack`` takes and gives."""
    manifest = pack.manifest
    shapes = pack.shapes if pack.others else None
    return Signature(manifest.inputs, manifest.outputs, manifest.text is not None, shapes)


class ModelRequest(NamedTuple):
    """What is asked of a model: for each port an array, contiguous, with its dtype and shape, or a picture.

    ``inputs``: cleared when the sweep has ended, since outputs take their place in memory. ``wanted``:
    outputs, in the order of the answer. ``timeout_seconds``: of the client's own. ``decoding_seconds``:
    what it took to make the inputs. ``priority``: 1 is the highest, 0 as usual.
    """

    inputs: dict[str, Any]
    wanted: tuple[WantedOutput, ...]
    id: str | None = None
    timeout_seconds: float | None = None
    decoding_seconds: float = 0.0
    priority: int = 0


class Output(NamedTuple):
    """One array of an answer."""

    name: str
    array: NDArray[Any]
    is_binary: bool = False


class ModelAnswer(NamedTuple):
    """The outputs of a model, in the order in which they were asked for."""

    model: str
    version: str
    id: str | None
    outputs: Sequence[Output]


# The fields of an infer request: their types, what the model's ports say to them, parameters.
#
# They are said here for all: JSON however it is read, gRPC, and /openapi.json. Unknown parameters
# are ignored, as the protocol says; those that would change the answer are not.

_MICROSECONDS = 1_000_000
# What has no scores.
_UNRANKED = (STRINGS, "bool")
_SHARED_MEMORY = ": shared memory is not served; send the data"
# Which ones there are, and of what type each is, is checked where they mean something.
Parameters = Annotated[
    dict[str, Any],
    WithJsonSchema(TypeAdapter(dict[str, bool | int | float | str]).json_schema()),
]
#: One of those that the protocol has, as documentation says; the model has its own word.
Datatype = Annotated[StrictStr, Field(json_schema_extra={"enum": list(DATATYPES)})]
_Size = Annotated[StrictInt, WithJsonSchema(TypeAdapter(NonNegativeInt).json_schema())]


def _parameters(about: str) -> Any:
    # A default that is written here would be copied for each request, deeply.
    return Field(default_factory=dict, description=about, json_schema_extra={"default": {}})


class RequestInput(BaseModel):
    """One input of the model."""

    model_config = ConfigDict(extra="forbid")

    name: StrictStr
    shape: list[_Size] = Field(max_length=16)
    datatype: Datatype
    data: Annotated[list[Any] | None, WithJsonSchema({"items": {}, "type": "array"})] = Field(
        None,
        description="flat or nested, row-major; of BYTES: strings; without it: binary data",
        json_schema_extra={"default": []},
    )
    parameters: Parameters = _parameters("binary_data_size: bytes behind the JSON")


class RequestOutput(BaseModel):
    """One output that is asked for."""

    name: StrictStr
    parameters: Parameters = _parameters("binary_data, classification")


class InferRequest(BaseModel):
    """Every input of the model once; without ``outputs`` all of them are answered."""

    id: StrictStr | None = None
    inputs: list[RequestInput]
    outputs: list[RequestOutput] | None = None
    parameters: Parameters = _parameters("binary_data_output, timeout (microseconds)")


# Of the model itself it is a function of Python, which makes other arguments of its own.
_validated = TypeAdapter(InferRequest).validator.validate_python


def parse_fields(document: object) -> InferRequest:
    """Return ``document``, a request with empty lists for data, as fields.

    Raises:
        InvalidRequestError: one is missing, unknown or of a wrong type, or two contradict each other.
    """
    try:
        fields: InferRequest = _validated(document)
    except ValidationError as exc:
        errors = exc.errors()
        raise InvalidRequestError(
            _named_input(document, errors[0]["loc"]) + first_error(errors)
        ) from None
    for index, tensor in enumerate(fields.inputs):
        fault = _data_fault(tensor)
        if fault:
            raise InvalidRequestError(f"input {shown(tensor.name)}: inputs.{index}{fault}")
    return fields


def _named_input(document: Any, place: Sequence[int | str]) -> str:
    """Return which input of ``document`` a fault at ``place`` is of, where that says its name."""
    match place:
        case ["inputs", int(index), *_]:
            tensor = document["inputs"][index]
            name = tensor.get("name") if isinstance(tensor, dict) else None
            return f"input {shown(name)}: " if isinstance(name, str) else ""
    return ""


_PARSED_AS = {
    "float_parsing": "a number",
    "int_parsing": "a whole number",
    "bool_parsing": "true or false",
}


def first_error(errors: Iterable[Mapping[str, Any]]) -> str:
    """Return the first of pydantic's ``errors`` as "field: why", of bounded length."""
    first = next(iter(errors))
    field = ".".join(shown(str(part))[1:-1] for part in first["loc"][-4:]) or "body"
    kind, value = _PARSED_AS.get(first.get("type", "")), first.get("input")
    if kind is not None and isinstance(value, str) and not value.strip():
        return f"{field}: empty; give {kind}, or leave the field out"
    return f"{field}: {first['msg'].removeprefix('Value error, ')}"


def _data_fault(tensor: RequestInput) -> str:
    """Return the field of ``tensor`` that keeps its data from being found, and why; empty: none does."""
    size = tensor.parameters.get("binary_data_size")
    if "shared_memory_region" in tensor.parameters:
        return _SHARED_MEMORY
    if size is None and tensor.data is None:
        return ".data: Field required"
    if size is not None and tensor.data is not None:
        return ": both data and binary_data_size are given"
    if size is not None and not is_count(size):
        return ".parameters.binary_data_size: not a number of bytes"
    return ""


def is_count(value: object) -> bool:
    """Return whether ``value`` is a whole number from 0 on."""
    return type(value) is int and value >= 0


def _flag(where: str, parameters: Parameters, name: str, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{where}.{name}: not a boolean")
    return value


def model_request(
    fields: InferRequest,
    inputs: dict[str, NDArray[Any]],
    model: Signature,
    seconds: float = 0.0,
) -> ModelRequest:
    """Return the request to ``model`` that ``fields`` are.

    ``inputs``: arrays, as ``matched_inputs`` has them. ``seconds``: that it took to make them.

    Raises:
        InvalidRequestError: the time or the priority is not a whole number from 0 on, or an output is
            unknown, asked for twice, or in a way that it does not have.
    """
    parameters = fields.parameters
    wanted = _wanted_outputs(fields, model)
    timeout, priority = parameters.get("timeout", 0), parameters.get("priority", 0)
    if not is_count(timeout):
        raise InvalidRequestError("parameters.timeout: not a whole number of microseconds")
    if not is_count(priority):
        raise InvalidRequestError("parameters.priority: not a whole number from 0 on")
    return ModelRequest(inputs, wanted, fields.id, timeout_seconds(timeout), seconds, priority)


def timeout_seconds(timeout: int) -> float | None:
    """Return a ``timeout`` of microseconds as seconds; None: 0, which is none."""
    return timeout / _MICROSECONDS or None


def shaped_port(
    where: str, kind: object, shape: object, port: Port, shapes: "PackShapes | None"
) -> Port:
    """Return ``port`` in the shape of a tensor: its own, or another one of the model's ``shapes``.

    Datatype and shape are checked, each where it has the right type.

    Raises:
        InvalidRequestError: they are not those of ``port``.
    """
    if isinstance(kind, str) and kind != datatype(port.dtype):
        raise InvalidRequestError(
            f"{where}: datatype {shown(kind)}, the model takes {datatype(port.dtype)}"
        )
    if not isinstance(shape, list) or shape == list(port.shape):
        return port
    if shapes is not None and shapes.accepts(port.name, tuple(shape)):
        return replace(port, shape=tuple(shape))
    if all(type(size) is int for size in shape):
        text = shown(str(shape))[1:-1]
        choices = list(port.shape) if shapes is None else shapes.choices
        raise InvalidRequestError(f"{where}: shape {text}, the model takes {choices}")
    return port


def port_of(name: str, ports: Mapping[str, Port]) -> Port:
    """Return which of ``ports``, by name, the input ``name`` is.

    Raises:
        InvalidRequestError: none.
    """
    port = ports.get(name)
    if port is None:
        names = ", ".join(map(shown, ports))
        raise InvalidRequestError(f"unknown input {shown(name)}; the model takes {names}")
    return port


def matched_inputs(fields: InferRequest, model: Signature) -> list[tuple[str, RequestInput, Port]]:
    """Return the inputs of ``fields``: how errors name each, what is said of it, and which port it is.

    Raises:
        InvalidRequestError: one is unknown, given twice, missing, or not of its port's datatype and shape.
    """
    found: dict[str, tuple[str, RequestInput, Port]] = {}
    for tensor in fields.inputs:
        port = port_of(tensor.name, model.inputs)
        where = model.named[port.name]
        if port.name in found:
            raise InvalidRequestError(f"{where} is given twice")
        port = shaped_port(where, tensor.datatype, tensor.shape, port, model.shapes)
        found[port.name] = where, tensor, port
    if model.accepts_text and TEXT in found:
        if len(found) > 1:
            raise InvalidRequestError(f"{model.named[TEXT]}: a text, or its tokens, not both")
        return list(found.values())
    for name, port in model.inputs.items():
        if name not in found and port.default is None and port is not TEXT_PORT:
            raise InvalidRequestError(f"{model.named[name]} is missing")
    model.check_shapes(port for _, _, port in found.values())
    return list(found.values())


def _wanted_outputs(fields: InferRequest, model: Signature) -> tuple[WantedOutput, ...]:
    """Return which outputs of ``model`` are asked for, and how; all where none is named."""
    is_binary = _flag("parameters", fields.parameters, "binary_data_output", False)
    if not fields.outputs:
        return model.all_outputs[is_binary]
    _check_names((output.name for output in fields.outputs), model.outputs)
    return tuple(
        _wanted(f"outputs.{index}", output, model.outputs[output.name], is_binary)
        for index, output in enumerate(fields.outputs)
    )


def _wanted(where: str, output: RequestOutput, port: Port, is_binary: bool) -> WantedOutput:
    parameters = output.parameters
    if "shared_memory_region" in parameters:
        raise InvalidRequestError(where + _SHARED_MEMORY)
    n_classes = parameters.get("classification", 0)
    if "classification" in parameters and not (is_count(n_classes) and n_classes):
        raise InvalidRequestError(
            f"{where}.parameters.classification: not a number of classes above 0"
        )
    if n_classes and port.dtype in _UNRANKED:
        raise InvalidRequestError(f"{where}: {datatype(port.dtype)} has no classes")
    return WantedOutput(
        port.name, _flag(f"{where}.parameters", parameters, "binary_data", is_binary), n_classes
    )


def _check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Check that the ``names`` of outputs are ``known``, and each is there once.

    Raises:
        InvalidRequestError: one is not.
    """
    known = set(known)
    asked: set[str] = set()
    for name in names:
        if name not in known:
            there = few([shown(each) for each in sorted(known)])
            raise InvalidRequestError(f"unknown output {shown(name)}; there is {there}")
        if name in asked:
            raise InvalidRequestError(f"output {shown(name)} is asked for twice")
        asked.add(name)
