"""What routes say of themselves for /openapi.json, where FastAPI does not see it.

Bodies of requests are read part by part by their handlers, and many are not JSON. So routes name what they
take and give here; models of pydantic are referred to by name, binary bodies are written by hand.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.protocol import schemas

Document = dict[str, Any]
#: Of a body by its media type.
Contents = dict[str, Document]

_FILE: Document = {"type": "string", "format": "binary"}
JSON = "application/json"
BINARY: Contents = {"application/octet-stream": {"schema": _FILE}}
PNG_FILE: Contents = {"image/png": {"schema": _FILE}}
#: An array in a file of NumPy.
NPY = "application/x-npy"
NPY_FILE: Contents = {NPY: {"schema": _FILE}}
#: A picture, as all of the body or as the file of a form.
PICTURE: Contents = {
    "image/*": {"schema": _FILE},
    "multipart/form-data": {"schema": schemas.reference(schemas.ImageForm)},
}
SOUND: Contents = {"audio/*": {"schema": _FILE}}
CAMERA_PICTURE: Contents = {
    "multipart/form-data": {"schema": schemas.reference(schemas.CameraForm)},
    "image/*": {"schema": _FILE},
}
#: Errors of several routes.
MODEL = (404, 409, 503)
INFERENCE = (400, 404, 408, 409, 413, 415, 500, 503, 504)
OBJECT = (400, 408, 413)
LOADING = (403, 404, 409, 500, 503)
_ERRORS = {
    400: "the request is not what the protocol or the model asks for; the field is named",
    401: "a key is wanted, or this one is not valid (only where the server has keys)",
    403: "loading and unloading is not for this caller",
    404: "no such model, version or output; or the model was unloaded by request",
    408: "the body did not come on",
    409: "the model does not fit into the budget: what it needs and what is free; or it is being uploaded",
    413: "the body is over the limit",
    415: "the body is compressed in a way that is not read (Content-Encoding)",
    500: "a fault of the server; its log says more",
    503: "not ready, out of service, a queue that is full (with Retry-After), a read that failed, no disk",
    504: "no answer in time",
}
_RETRY = {
    "Retry-After": {"description": "seconds, where waiting helps", "schema": {"type": "integer"}}
}

#: Headers that say how the body of an infer request is made.
FRAMING: tuple[Document, ...] = (
    {
        "name": "Inference-Header-Content-Length",
        "in": "header",
        "description": "bytes of JSON before raw tensors; without it all of the body is JSON",
        "schema": {"type": "integer", "minimum": 0},
    },
    {
        "name": "Content-Encoding",
        "in": "header",
        "description": "how the body is compressed",
        "schema": {"type": "string", "enum": ["identity", "gzip", "deflate"]},
    },
)


def errors(*statuses: int, model: type[BaseModel] = schemas.Error) -> dict[int | str, Document]:
    """Return the responses of a route that are errors with these ``statuses``."""
    # By reference: FastAPI would make a validator for each, of which none would ever be called.
    content = {JSON: {"schema": schemas.reference(model)}}
    described: dict[int | str, Document] = {
        status: {"content": content, "description": _ERRORS[status]} for status in statuses
    }
    if 503 in described:
        described[503]["headers"] = _RETRY
    return described


def json_answer(model: type[BaseModel], described: Mapping[str, Any]) -> Document:
    """Return the response that is JSON of ``model``, and what else it is ``described`` as."""
    content = {JSON: {"schema": schemas.reference(model)}}
    return {**described, "content": {**content, **described.get("content", {})}}


def also(contents: Contents) -> dict[int | str, Document]:
    """Return the response of a route that also gives these ``contents`` where it gives JSON."""
    return {200: {"content": contents}}


def takes(
    contents: Contents, *, is_optional: bool = False, headers: tuple[Document, ...] = ()
) -> Document:
    """Return what the document has more of a route that reads a body of these ``contents``."""
    body = {"required": not is_optional, "content": contents}
    return {"requestBody": body, **({"parameters": list(headers)} if headers else {})}


def json_of(model: type[BaseModel], example: Document | None = None) -> Contents:
    """Return the contents of JSON of this ``model``; ``example``: right for every model that serves."""
    examples = {} if example is None else {"example": example}
    return {JSON: {"schema": schemas.reference(model), **examples}}


def referenced_schemas() -> Mapping[str, Document]:
    """Return the schemas to which routes refer, by name."""
    models = [(model, "validation") for model in schemas.REFERENCED.values()]
    _, definitions = models_json_schema(models, ref_template=schemas.REFERENCE)  # type: ignore[arg-type]
    schemas_by_name: Mapping[str, Document] = definitions["$defs"]
    return schemas_by_name
