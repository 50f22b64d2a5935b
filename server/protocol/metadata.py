"""Answers about the server and its models: health, metadata, configuration, statistics."""

import json
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST

from models.packs.manifest import Manifest
from models.packs.pack import Pack
from models.packs.records.ports import Port
from server.codec.datatypes import datatype
from server.context import Context
from server.errors import InvalidRequestError, NotServingError, UnsupportedError, shown
from server.failures import reason_of
from server.operation.process import installed_version
from server.protocol.answers import Answer, answered, as_json
from server.protocol.attending import Attended
from server.repository.entry import Entry

# Server metadata, health and metrics.

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


async def server_metadata(asked: Attended) -> dict[str, object]:
    """Name, version, and the extensions of the protocol that are served."""
    return {"name": "layerstream", "version": installed_version(), "extensions": list(EXTENSIONS)}


async def live(asked: Attended) -> dict[str, bool]:
    """The process answers."""
    return {"live": True}


async def ready(asked: Attended) -> Answer:
    """200 when models have been loaded and serve, and the repository is there; else 503 with the reason."""
    reason = await absence(asked.context)
    if not reason:
        return as_json({"ready": True})
    return as_json(
        {"ready": False, "reason": reason_of(reason, asked.context.settings.repository)}, 503
    )


async def absence(context: Context) -> str:
    """Return why it is not ready; empty: models have been loaded and serve, and the repository is there."""
    if context.absence:
        return context.absence
    return "" if await context.repository.presence.is_there() else "the repository is not there"


async def metrics(asked: Attended) -> Answer:
    """Prometheus' text format."""
    return answered(await asked.context.metrics.render(), CONTENT_TYPE_LATEST)


# The model configuration extension: what Triton's clients want to know of a model, in Triton's words.

_PLATFORM = "onnx_layerstream"
BACKEND = "layerstream"
_FILE = "model.onnx"
_LATEST = {"latest": {"num_versions": 1}}


async def model_config(asked: Attended, name: str, version: str | None = None) -> dict[str, Any]:
    """The configuration of a model; dims are without the batch, where ``max_batch_size`` is one."""
    entry, pack = await asked.context.repository.described(name, version)
    # An evicted model is away for a moment; how many workers it will have is not known before it is back.
    if entry.worker is None:
        raise NotServingError(f"model {shown(name)}: {entry.reason}")
    is_gpu = asked.context.settings.device == "cuda"
    return {
        **_fixed(name),
        **_shapes(pack.manifest),
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


def _shapes(manifest: Manifest) -> dict[str, Any]:
    ports = (*manifest.inputs, *manifest.outputs)
    is_batch = all(len(port.shape) > 1 and port.shape[0] == 1 for port in ports)
    return {
        "max_batch_size": 1 if is_batch else 0,
        "input": [
            {
                **_config_tensor(port, is_batch),
                "format": "FORMAT_NONE",
                "optional": port.default is not None,
            }
            for port in manifest.inputs
        ],
        "output": [
            {**_config_tensor(port, is_batch), "label_filename": ""} for port in manifest.outputs
        ],
    }


def _config_tensor(port: Port, is_batch: bool) -> dict[str, Any]:
    return {
        "name": port.name,
        "data_type": data_type(port.dtype),
        "dims": list(port.shape[is_batch:]),
    }


# Metadata and readiness of one model.


def _tensor_metadata(port: Port) -> dict[str, Any]:
    return {"name": port.name, "datatype": datatype(port.dtype), "shape": list(port.shape)}


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


async def model_metadata(asked: Attended, name: str, version: str | None = None) -> dict[str, Any]:
    """Inputs and outputs, and how the model is held in memory."""
    entry, pack = await asked.context.repository.described(name, version)
    fitted = entry.fitted
    plan = fitted.plan if fitted else None
    return {
        "name": name,
        "versions": asked.context.repository.models.versions(name),
        "platform": _PLATFORM,
        "inputs": [_tensor_metadata(port) for port in pack.manifest.inputs],
        "outputs": [_tensor_metadata(port) for port in pack.manifest.outputs],
        "parameters": {
            "weight_bytes": pack.manifest.weight_bytes,
            "architecture": plan.architecture.name if plan else None,
            "memory_bytes": plan.memory if plan else None,
            "predicted_ms": _milliseconds(fitted.predicted_seconds) if fitted else None,
            "bound_ms": _milliseconds(fitted.bound_seconds) if fitted else None,
        },
    }


async def model_ready(asked: Attended, name: str, version: str | None = None) -> dict[str, Any]:
    """200 when requests are answered; 409 when it was refused for want of memory, 503 otherwise."""
    await asked.context.repository.check_answers(name, version)
    return {"name": name, "ready": True}


# The statistics extension: how many requests each model answered, and where their time went.


async def all_statistics(asked: Attended) -> dict[str, Any]:
    """Statistics of all models that serve."""
    serving = [entry for entry in asked.context.repository.entries() if entry.serves]
    named = sorted(serving, key=lambda entry: entry.name)
    packs = [(entry, entry.pack) for entry in named]
    return {
        "model_stats": [
            _statistics_of(asked.context, entry, pack) for entry, pack in packs if pack is not None
        ]
    }


async def model_statistics(
    asked: Attended, name: str, version: str | None = None
) -> dict[str, Any]:
    """Statistics of one model, since the server started, also while it was unloaded."""
    entry, pack = await asked.context.repository.described(name, version)
    return {"model_stats": [_statistics_of(asked.context, entry, pack)]}


def _statistics_of(context: Context, entry: Entry, pack: Pack) -> dict[str, Any]:
    plan_bytes = entry.fitted.plan.total_bytes if entry.fitted is not None else 0
    return {
        "name": entry.model,
        "version": pack.version,
        **context.metrics.requests.inferences.of(entry.model, pack.version).as_dict(),
        "memory_usage": [{"type": "CPU", "id": 0, "byte_size": plan_bytes}],
    }


# Requests of Triton's clients about what this server does not have: traces, log levels, shared memory.
#
# The answers are true: nothing is traced, no region is registered. Settings cannot be changed, so they take
# no POST. Registering a region is always refused, and is in no documentation.


async def trace_settings(asked: Attended) -> dict[str, list[str]]:
    """Nothing is traced."""
    return {"trace_level": ["OFF"]}


async def model_trace_settings(asked: Attended, name: str) -> dict[str, list[str]]:
    """Nothing is traced of this model either."""
    await asked.context.repository.described(name)
    return await trace_settings(asked)


async def log_settings(asked: Attended) -> dict[str, bool | int | str]:
    """What is logged: everything but details of requests."""
    return {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 0,
        "log_format": "default",
    }


async def regions(asked: Attended, region: str = "") -> list[Any]:
    """None: no shared memory is registered."""
    return []


async def register(asked: Attended, region: str) -> None:
    """501: shared memory is not served."""
    raise UnsupportedError("shared memory is not served; send tensors as binary data")


async def unregister(asked: Attended, region: str = "") -> dict[str, Any]:
    """Nothing happens: no shared memory is registered."""
    return {}
