"""Answers about the server and its models: health, metadata, configuration, statistics."""

import json
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from models.packs.pack import Pack
from models.packs.records.ports import Port
from server.codec.datatypes import datatype
from server.codec.messages import TEXT_PORT
from server.errors import InvalidRequestError, NotServingError, UnsupportedError, shown
from server.faults import reason_of
from server.operation.process import installed_version
from server.protocol import schemas
from server.protocol.answers import Answer, answered, as_json
from server.protocol.documentation import MODEL, errors
from server.protocol.http_request import Rules
from server.protocol.routing import CurrentService, Route, of_model, route_class, serves
from server.repository.entry import Entry
from server.service import Service

# Server metadata, health and metrics.

SERVER = APIRouter(tags=["server"], route_class=Route)
HEALTH = APIRouter(tags=["server"], route_class=route_class(Rules(admitted="open", is_probe=True)))
METRICS = APIRouter(
    tags=["server"], route_class=route_class(Rules(admitted="metrics", is_probe=True))
)

#: Named as Triton names them, as far as it has them.
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "parameters",
    "statistics",
    "classification_image",
    "detection_image",
    "metrics",
)


@serves(SERVER, "GET", "/v2", response_model=schemas.ServerMetadata)
async def server_metadata() -> dict[str, object]:
    """Name, version, and the extensions of the protocol that are served."""
    return {"name": "layerstream", "version": installed_version(), "extensions": list(EXTENSIONS)}


@serves(HEALTH, "GET", "/v2/health/live", response_model=schemas.ServerLive)
async def live() -> dict[str, bool]:
    """The process answers."""
    return {"live": True}


@serves(
    HEALTH,
    "GET",
    "/v2/health/ready",
    response_model=schemas.ServerReady,
    responses={503: {"model": schemas.ServerReady}},
)
async def ready(service: CurrentService) -> Answer:
    """200 when a model serves (strict_readiness: all) and the repository is there; else 503 with why."""
    reason = await absence(service)
    if not reason:
        return as_json({"ready": True})
    return as_json({"ready": False, "reason": reason_of(reason, service.settings.repository)}, 503)


async def absence(service: Service) -> str:
    """Return why it is not ready: as ``Service.unready``, or no answer of the repository; else empty."""
    if reason := service.unready:
        return reason
    if await service.repository.presence.is_there():
        return ""
    return "the repository is not there, or its file system does not answer"


@serves(METRICS, "GET", "/metrics", response_model=str, response_class=PlainTextResponse)
async def metrics(service: CurrentService) -> Answer:
    """Prometheus' text format."""
    return answered(await service.metrics.render(), CONTENT_TYPE_LATEST)


# The model configuration extension: what Triton's clients want to know of a model, in Triton's words.

_PLATFORM = "onnx_layerstream"
BACKEND = "layerstream"
_FILE = "model.onnx"
_LATEST = {"latest": {"num_versions": 1}}

MODELS = APIRouter(tags=["models"], route_class=Route)
READY = APIRouter(tags=["models"], route_class=route_class(Rules(is_probe=True)))


@serves(
    MODELS,
    "GET",
    *of_model("/config"),
    response_model=schemas.ModelConfig,
    responses=errors(*MODEL),
)
async def model_config(
    service: CurrentService, name: str, version: str | None = None
) -> dict[str, Any]:
    """The configuration of a model; dims are without the batch, where ``max_batch_size`` is one."""
    entry, pack = await service.repository.described(name, version)
    # An evicted model is away for a moment; how many workers it will have is not known before it is back.
    if entry.worker is None:
        raise NotServingError(f"model {shown(name)}: {entry.reason}")
    is_gpu = service.settings.device == "cuda"
    return {
        **_fixed(name),
        **_shapes(pack),
        "instance_group": [
            {
                "name": f"{name}_0",
                "kind": "KIND_GPU" if is_gpu else "KIND_CPU",
                "count": entry.worker.engine.callers,
                "gpus": [0] if is_gpu else [],
            }
        ],
        "parameters": {},
    }


def data_type(dtype: str) -> str:
    """Return what configurations call a dtype: "TYPE_FP32", and "TYPE_STRING" for strings."""
    kind = datatype(dtype)
    return "TYPE_STRING" if kind == "BYTES" else f"TYPE_{kind}"


def check_override(text: object, name: str) -> None:
    """Check that a configuration that comes with a load of ``name`` changes nothing.

    A pack cannot be changed by a load, so a configuration may only repeat what holds for every model.

    Raises:
        InvalidRequestError: it is no configuration, or a field of it has another value.
    """
    try:
        document = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidRequestError("parameters.config: not a JSON object as text")
    fixed = _fixed(name)
    for field, value in document.items():
        if field not in fixed:
            raise InvalidRequestError(
                f"parameters.config: {shown(field)} cannot be changed: a pack has what it was "
                "compiled with"
            )
        if value != fixed[field]:
            raise InvalidRequestError(
                f"parameters.config: {field} cannot be changed from {json.dumps(fixed[field])}"
            )


def _fixed(name: str) -> dict[str, Any]:
    """Return the fields that are the same for every model and every load."""
    return {
        "name": name,
        "platform": _PLATFORM,
        "backend": BACKEND,
        "version_policy": _LATEST,
        "default_model_filename": _FILE,
    }


def _shapes(pack: Pack) -> dict[str, Any]:
    ports = (*pack.inputs, *pack.outputs)
    is_batch = all(len(port.shape) > 1 and port.shape[0] == 1 for port in ports)
    return {
        "max_batch_size": 1 if is_batch else 0,
        "input": [
            {
                **_config_tensor(port, is_batch),
                "format": "FORMAT_NONE",
                # A text stands in place of all others.
                "optional": port.default is not None or pack.manifest.text is not None,
            }
            for port in _inputs(pack)
        ],
        "output": [
            {**_config_tensor(port, is_batch), "label_filename": ""} for port in pack.outputs
        ],
    }


def _config_tensor(port: Port, is_batch: bool) -> dict[str, Any]:
    return {
        "name": port.name,
        "data_type": data_type(port.dtype),
        "dims": list(port.shape[is_batch:]),
    }


# Metadata and readiness of one model.


def _inputs(pack: Pack) -> Sequence[Port]:
    """Return the inputs of a model, last the text that may stand in place of all others."""
    has_text = pack.manifest.text is not None
    return (*pack.inputs, *([TEXT_PORT] if has_text else []))


def _tensor_metadata(port: Port) -> dict[str, Any]:
    return {"name": port.name, "datatype": datatype(port.dtype), "shape": list(port.shape)}


def _shape_texts(pack: Pack) -> dict[str, list[str]]:
    """Return the shapes of a model that has several."""
    shapes = [shape.manifest.shape_text for shape in (pack, *pack.others)]
    return {"shapes": shapes} if pack.others else {}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


@serves(
    MODELS, "GET", *of_model(""), response_model=schemas.ModelMetadata, responses=errors(*MODEL)
)
async def model_metadata(
    service: CurrentService, name: str, version: str | None = None
) -> dict[str, Any]:
    """Inputs and outputs, and how the model is held in memory."""
    entry, pack = await service.repository.described(name, version)
    fitted = entry.fitted
    plan = fitted.plan if fitted else None
    return {
        "name": name,
        "versions": service.repository.models.versions(name),
        "platform": _PLATFORM,
        "inputs": [_tensor_metadata(port) for port in _inputs(pack)],
        "outputs": [_tensor_metadata(port) for port in pack.outputs],
        "parameters": {
            "weight_bytes": pack.manifest.weight_bytes,
            **_shape_texts(pack),
            "architecture": plan.architecture.name if plan else None,
            "memory_bytes": plan.memory if plan else None,
            "predicted_ms": _milliseconds(fitted.predicted_seconds) if fitted else None,
            "bound_ms": _milliseconds(fitted.bound_seconds) if fitted else None,
        },
    }


@serves(
    READY, "GET", *of_model("/ready"), response_model=schemas.ModelReady, responses=errors(*MODEL)
)
async def model_ready(
    service: CurrentService, name: str, version: str | None = None
) -> dict[str, Any]:
    """200 when requests are answered; 409 when it was refused for want of memory, 503 otherwise."""
    await service.repository.check_answers(name, version)
    return {"name": name, "ready": True}


# The statistics extension: how many requests each model answered, and where their time went.

#: Before other routes of models, one of which would match the path of all statistics.
STATISTICS = APIRouter(tags=["models"], route_class=Route)


@serves(STATISTICS, "GET", "/v2/models/stats", response_model=schemas.Statistics)
async def all_statistics(service: CurrentService) -> dict[str, Any]:
    """Statistics of all models that serve."""
    serving = [entry for entry in service.repository.entries() if entry.serves]
    named = sorted(serving, key=lambda entry: entry.name)
    packs = [(entry, entry.pack) for entry in named]
    return {
        "model_stats": [
            _statistics_of(service, entry, pack) for entry, pack in packs if pack is not None
        ]
    }


@serves(
    STATISTICS,
    "GET",
    *of_model("/stats"),
    response_model=schemas.Statistics,
    responses=errors(*MODEL),
)
async def model_statistics(
    service: CurrentService, name: str, version: str | None = None
) -> dict[str, Any]:
    """Statistics of one model, since the server started, also while it was unloaded."""
    entry, pack = await service.repository.described(name, version)
    return {"model_stats": [_statistics_of(service, entry, pack)]}


def _statistics_of(service: Service, entry: Entry, pack: Pack) -> dict[str, Any]:
    plan_bytes = entry.fitted.plan.total_bytes if entry.fitted is not None else 0
    return {
        "name": entry.model,
        "version": pack.version,
        **service.metrics.requests.inferences.of(entry.model, pack.version).as_dict(),
        "memory_usage": [{"type": "CPU", "id": 0, "byte_size": plan_bytes}],
    }


# Requests of Triton's clients about what this server does not have: traces, log levels, shared memory.
#
# The answers are true: nothing is traced, no region is registered. Settings cannot be changed, so they take
# no POST. Registering a region is always refused, and is in no documentation.

UNSERVED = APIRouter(tags=["not served"], route_class=Route)
_SYSTEM, _CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
_REGIONS = [
    f"{memory}{region}" for memory in (_SYSTEM, _CUDA) for region in ("/region/{region}", "")
]


@serves(UNSERVED, "GET", "/v2/trace/setting", response_model=schemas.TraceSettings)
async def trace_settings() -> dict[str, list[str]]:
    """Nothing is traced."""
    return {"trace_level": ["OFF"]}


@serves(
    UNSERVED,
    "GET",
    "/v2/models/{name}/trace/setting",
    response_model=schemas.TraceSettings,
    responses=errors(*MODEL),
)
async def model_trace_settings(service: CurrentService, name: str) -> dict[str, list[str]]:
    """Nothing is traced of this model either."""
    await service.repository.described(name)
    return await trace_settings()


@serves(UNSERVED, "GET", "/v2/logging", response_model=schemas.LogSettings)
async def log_settings() -> dict[str, bool | int | str]:
    """What is logged: everything but details of requests."""
    return {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }


@serves(UNSERVED, "GET", *(f"{path}/status" for path in _REGIONS), response_model=schemas.NoRegions)
async def regions(region: str = "") -> list[Any]:
    """None: no shared memory is registered."""
    return []


@serves(
    UNSERVED,
    "POST",
    *(f"{memory}/region/{{region}}/register" for memory in (_SYSTEM, _CUDA)),
    include_in_schema=False,
)
async def register(region: str) -> None:
    """501: shared memory is not served."""
    raise UnsupportedError("shared memory is not served; send tensors as binary data")


@serves(
    UNSERVED,
    "POST",
    *(f"{path}/unregister" for path in _REGIONS),
    response_model=schemas.Nothing,
)
async def unregister(region: str = "") -> dict[str, Any]:
    """Nothing happens: no shared memory is registered."""
    return {}
