"""What requests and answers look like, for /openapi.json: the Open Inference Protocol, version 2, and ours.

Nothing is parsed or checked by these: they say in one place what the handlers and ``errors`` take and give.
A test holds answers of a running server against them. An infer request is described by what checks it.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

from server.codec.fields import Datatype, Parameters

REFERENCE = "#/components/schemas/{model}"


def reference(schema: type[BaseModel]) -> dict[str, str]:
    """Return what stands for ``schema`` where it is used."""
    return {"$ref": REFERENCE.format(model=schema.__name__)}


class Schema(BaseModel):
    """Has the fields that it names and no other."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class OpenSchema(BaseModel):
    """May have fields that nobody looks at."""


class Error(Schema):
    """Why there is no answer, in one line."""

    error: str


class ResponseOutput(Schema):
    """One output of the model."""

    name: str
    shape: list[NonNegativeInt]
    datatype: Datatype
    data: list[bool | int | float | str] = Field(
        [], description="flat, row-major; without it: binary data"
    )
    parameters: Parameters = Field({}, description="binary_data_size: bytes behind the JSON")


class InferResponse(Schema):
    """Outputs as they were asked for; ``id`` as it was sent."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[ResponseOutput]


class ImageForm(OpenSchema):
    """A form with one file, under any name."""

    image: Annotated[bytes, Field(json_schema_extra={"format": "binary"})]


class CameraForm(ImageForm):
    """A form with one file; a key comes before it."""

    min_confidence: float | None = Field(None, ge=0, le=1)
    api_key: str | None = None


class Prediction(Schema):
    """A class and how probable it is."""

    label: str
    probability: float
    index: NonNegativeInt


class Classification(Schema):
    """The most probable classes, best first; ``delay_ms`` of the model alone."""

    model_name: str
    model_version: str
    predictions: list[Prediction]
    delay_ms: float


class ImageSize(Schema):
    """Of the upright photograph, in pixels."""

    width: int
    height: int


class Detection(Schema):
    """What is in a box: x_min, y_min, x_max, y_max in pixels of the upright photograph."""

    label: str
    index: NonNegativeInt
    score: float
    box: list[float] = Field(min_length=4, max_length=4)


class Detections(Schema):
    """Objects, best score first; ``delay_ms`` of the model alone."""

    model_name: str
    model_version: str
    image: ImageSize
    detections: list[Detection]
    delay_ms: float


class CameraPrediction(Schema):
    """What is in a box, in whole pixels of the upright photograph."""

    label: str
    confidence: float
    x_min: int
    y_min: int
    x_max: int
    y_max: int


class CameraPredictions(Schema):
    """Objects, best first, as DeepStack tells them; ``duration`` of the model alone, in seconds."""

    success: Literal[True]
    predictions: list[CameraPrediction]
    duration: float


class MaskRuns(Schema):
    """Which class each pixel is, row after row: class, how many pixels, class, how many; 255: none."""

    width: int
    height: int
    runs: list[NonNegativeInt]


class ClassArea(Schema):
    """Of how many pixels of the mask a class is, and in which colour it is drawn: #rrggbb."""

    label: str
    index: NonNegativeInt
    color: str
    pixels: NonNegativeInt


class Segmented(Schema):
    """The mask, and the classes in it, largest first; ``delay_ms`` of the model alone."""

    model_name: str
    model_version: str
    image: ImageSize
    mask: MaskRuns
    classes: list[ClassArea]
    delay_ms: float


class ServerMetadata(Schema):
    """Name, version and extensions."""

    name: str
    version: str
    extensions: list[str]


class ServerLive(Schema):
    """The process answers."""

    live: bool


class ServerReady(Schema):
    """Whether models serve; where none does, or they are still loaded, the reason."""

    ready: bool
    reason: str | None = None


class Tensor(Schema):
    """An input or output; a length of -1 is known only when it runs."""

    name: str
    datatype: str
    shape: list[int]


class ModelParameters(Schema):
    """How the model is held in memory (None: it is not), and what its profile says of its delay."""

    weight_bytes: NonNegativeInt
    architecture: str | None
    memory_bytes: dict[str, NonNegativeInt] | None
    predicted_ms: float | None
    bound_ms: float | None


class ModelMetadata(Schema):
    """Inputs and outputs of a model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    parameters: ModelParameters


class ModelReady(Schema):
    """The model serves."""

    name: str
    ready: bool


State = Literal["READY", "LOADING", "UNAVAILABLE"]


class IndexEntry(Schema):
    """A model on disk or loaded; ``reason``: why it does not serve."""

    name: str
    version: str | None
    state: State
    reason: str


class ModelState(Schema):
    """What loading or unloading came to."""

    name: str
    state: State


class Replanned(ModelState):
    """What a model takes now, bytes by kind."""

    memory_bytes: dict[str, NonNegativeInt] | None


class Placed(Schema):
    """A version is in the repository; ``reason``: why it does not serve, if it does not."""

    name: str
    version: str
    state: State
    reason: str
    warnings: list[str]
