"""The model configuration extension: what Triton's clients want to know of a model, in Triton's words."""

import json
from typing import Any

from models.packs.manifest import Manifest
from models.packs.records.ports import Port
from server.codec.datatypes import datatype
from server.errors import InvalidRequestError, NotServingError, shown
from server.protocol.attending import Asking

PLATFORM = "onnx_layerstream"
BACKEND = "layerstream"
_FILE = "model.onnx"
_LATEST = {"latest": {"num_versions": 1}}


async def model_config(asked: Asking, name: str, version: str | None = None) -> dict[str, Any]:
    """The configuration of a model; dims are without the batch, where ``max_batch_size`` is one."""
    entry, pack = await asked.context.repository.described(name, version)
    if (
        entry.worker is None
    ):  # it is away for a moment, and nobody knows how many workers it will have
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

    A pack is what it was compiled to be: a configuration may say again what is so for every model.

    Raises:
        InvalidRequestError: it is none, or a field of it says something else.
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
        "platform": PLATFORM,
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
                **_tensor(port, is_batch),
                "format": "FORMAT_NONE",
                "optional": port.default is not None,
            }
            for port in manifest.inputs
        ],
        "output": [{**_tensor(port, is_batch), "label_filename": ""} for port in manifest.outputs],
    }


def _tensor(port: Port, is_batch: bool) -> dict[str, Any]:
    return {
        "name": port.name,
        "data_type": data_type(port.dtype),
        "dims": list(port.shape[is_batch:]),
    }
