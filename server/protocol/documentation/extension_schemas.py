"""What requests and answers of the protocol's extensions look like, for /openapi.json; Triton's fields."""

from typing import Literal

from pydantic import Field, NonNegativeInt

from server.protocol.documentation.schemas import OpenSchema, Schema


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


class IndexRequest(OpenSchema):
    """``ready``: only models that serve."""

    ready: bool = False


class LoadParameters(OpenSchema):
    """``config``: a configuration as JSON text, which may say what is so, and change nothing."""

    config: str = "{}"


class LoadRequest(OpenSchema):
    """Parameters of a load."""

    parameters: LoadParameters = LoadParameters()


class UnloadParameters(OpenSchema):
    """``unload_dependents``: there are none."""

    unload_dependents: bool = False


class UnloadRequest(OpenSchema):
    """Parameters of an unload."""

    parameters: UnloadParameters = UnloadParameters()


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
