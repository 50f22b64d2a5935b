"""Schemas of requests and answers for /openapi.json: of the Open Inference Protocol, version 2, and ours.

They are documentation: nothing is parsed or checked by them, but a test compares answers of a running
server with them. Only an infer request and a replan are described by the classes that also check them.
"""

from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
    RootModel,
)

from server.codec.messages import Datatype, Parameters
from server.faults import Code

REFERENCE = "#/components/schemas/{model}"


#: The schemas to which something refers, by name.
REFERENCED: dict[str, type[BaseModel]] = {}


def reference(schema: type[BaseModel]) -> dict[str, str]:
    """Return the reference to ``schema`` that stands where it is used."""
    REFERENCED[schema.__name__] = schema
    return {"$ref": REFERENCE.format(model=schema.__name__)}


# Most are never validated: what pydantic makes of them takes memory when it is needed first.


class Schema(BaseModel):
    """Has the fields that it names and no other."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), defer_build=True)


class OpenSchema(BaseModel):
    """May have fields that are ignored."""

    model_config = ConfigDict(defer_build=True)


class Error(Schema):
    """Why there is no answer: in one line, and in a word for programs."""

    error: str
    code: str = Field(json_schema_extra={"enum": [*Code]})


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


class CameraError(Error):
    """Why there are no predictions, in the form of DeepStack."""

    success: Literal[False]


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


class BoxMask(Schema):
    """A grid over a box. ``runs``: so many cells are not the object, so many are, and so on, by row."""

    width: NonNegativeInt
    height: NonNegativeInt
    runs: list[NonNegativeInt]


class Detection(Schema):
    """What is in a box: x_min, y_min, x_max, y_max in pixels of the upright photograph.

    ``keypoints``: x, y and perhaps how visible each is, of a network of poses; ``corners``: x, y of each of
    a rotated box, clockwise, around which ``box`` is upright.
    """

    label: str
    index: NonNegativeInt
    score: float
    box: list[float] = Field(min_length=4, max_length=4)
    keypoints: list[list[float]] | None = None
    corners: list[list[float]] | None = None
    mask: BoxMask | None = None


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
    """How the model is held in memory (None: it is not), and what its profile says of its delay.

    ``shapes``: where it has several, the largest first.
    """

    weight_bytes: NonNegativeInt
    architecture: str | None
    memory_bytes: dict[str, NonNegativeInt] | None
    predicted_ms: float | None
    bound_ms: float | None
    shapes: list[str] | None = None


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
    """A model on disk or loaded; ``reason``, ``code``: why it does not serve, in words and for programs.

    ``generation``: how many loads, unloads and limits were desired of it; ``observed_generation``: up to
    which they were made, or have failed.
    """

    name: str
    version: str | None
    state: State
    reason: str
    code: str | None
    generation: NonNegativeInt
    observed_generation: NonNegativeInt


class Index(RootModel[list[IndexEntry]]):
    """Models by name and version."""


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


# Schemas of the protocol's extensions, with Triton's fields.


class ConfigTensor(Schema):
    """An input or output; ``dims`` without the batch, where the model has one."""

    name: str
    data_type: str
    dims: list[int]


class ConfigInput(ConfigTensor):
    """An input; ``optional``: the model has a default."""

    format: Literal["FORMAT_NONE"]
    optional: bool


class ConfigOutput(ConfigTensor):
    """An output."""

    label_filename: str


class InstanceGroup(Schema):
    """How many requests compute at once, and where."""

    name: str
    kind: Literal["KIND_CPU", "KIND_GPU"]
    count: NonNegativeInt
    gpus: list[int]


class LatestVersions(Schema):
    """How many of the latest versions are served."""

    num_versions: NonNegativeInt


class VersionPolicy(Schema):
    """Which versions are served."""

    latest: LatestVersions


class ModelConfig(Schema):
    """The configuration of a model in Triton's fields."""

    name: str
    platform: str
    backend: str
    version_policy: VersionPolicy
    default_model_filename: str
    max_batch_size: NonNegativeInt = Field(description="0: shapes have no batch of their own")
    input: list[ConfigInput]
    output: list[ConfigOutput]
    instance_group: list[InstanceGroup]
    parameters: dict[str, str]


class Duration(Schema):
    """How often, and nanoseconds in all."""

    count: NonNegativeInt
    ns: NonNegativeInt


class ComputeStatistics(Schema):
    """Decoding what came, the model itself, encoding what goes."""

    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class InferenceStatistics(ComputeStatistics):
    """Requests that were answered or not; ``queue``: in line."""

    success: Duration
    fail: Duration
    queue: Duration
    cache_hit: Duration
    cache_miss: Duration


class BatchStatistics(ComputeStatistics):
    """Of batches of one size."""

    batch_size: NonNegativeInt


class MemoryUsage(Schema):
    """What a model holds of the budget."""

    type: Literal["CPU"]
    id: NonNegativeInt
    byte_size: NonNegativeInt


class ModelStatistics(Schema):
    """Of a version of a model; ``last_inference``: milliseconds since 1970, 0 before the first."""

    name: str
    version: str
    last_inference: NonNegativeInt
    inference_count: NonNegativeInt
    execution_count: NonNegativeInt
    inference_stats: InferenceStatistics
    batch_stats: list[BatchStatistics]
    memory_usage: list[MemoryUsage]


class Statistics(Schema):
    """Statistics since the server started."""

    model_stats: list[ModelStatistics]


class Embedded(Schema):
    """A vector; ``delay_ms`` of the model alone.

    Of a text ``tokens``, which the model saw, of a sound ``seconds``, and whether it has more
    (``truncated``); of an image its size.
    """

    model_name: str
    model_version: str
    embedding: list[float]
    tokens: PositiveInt | None = None
    seconds: float | None = None
    truncated: bool | None = None
    image: ImageSize | None = None
    delay_ms: float


class OpenAiFault(Schema):
    """Why there is no answer: in one line, and in a word for programs."""

    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: None
    code: str = Field(json_schema_extra={"enum": [*Code]})


class OpenAiError(Schema):
    """An error in the form of OpenAI."""

    error: OpenAiFault


class EmbeddingItem(Schema):
    """The vector of an input: floats, or their little-endian bytes as base64.

    ``truncated``: the model saw the first tokens alone.
    """

    object: Literal["embedding"]
    index: NonNegativeInt
    embedding: list[float] | str
    truncated: Literal[True] | None = None


class TokenUsage(Schema):
    """How many tokens the model saw."""

    prompt_tokens: NonNegativeInt
    total_tokens: NonNegativeInt


class EmbeddingList(Schema):
    """A vector for each input, in their order."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: TokenUsage


class IndexRequest(OpenSchema):
    """``ready``: only models that serve."""

    ready: bool = False


class LoadParameters(OpenSchema):
    """``config``: a configuration as JSON text, which may say what is so, and change nothing."""

    config: str = "{}"


class LoadRequest(OpenSchema):
    """Parameters of a load."""

    parameters: LoadParameters = LoadParameters()


def _whole(value: object) -> object:
    """Return 8e6 as the integer that it is to JSON, which has one kind of numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Replan(BaseModel):
    """``memory_bytes``: the most that each loaded version may take; null: what the budget leaves it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    memory_bytes: Annotated[PositiveInt, BeforeValidator(_whole)] | None


class UnloadParameters(OpenSchema):
    """``unload_dependents``: there are none."""

    unload_dependents: bool = False


class UnloadRequest(OpenSchema):
    """Parameters of an unload."""

    parameters: UnloadParameters = UnloadParameters()


class NoRegions(RootModel[Annotated[list[None], Field(max_length=0)]]):
    """No shared memory is registered."""


class Nothing(Schema):
    """Nothing happened."""


class TraceSettings(Schema):
    """Nothing is traced."""

    trace_level: list[Literal["OFF"]]


class LogSettings(Schema):
    """What is logged."""

    log_file: str
    log_info: bool
    log_warning: bool
    log_error: bool
    log_verbose_level: NonNegativeInt
    log_format: str
