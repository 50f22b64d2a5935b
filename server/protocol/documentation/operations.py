"""The table of endpoints: the bodies that each takes, and the statuses that it answers.

Handlers read bodies and write answers themselves, so FastAPI knows only paths and parameters; the rest is
said here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from server.protocol.documentation import extension_schemas as extensions
from server.protocol.documentation import schemas
from server.protocol.repository import Replan

Document = dict[str, Any]

_JSON = "application/json"
REFERENCE = "#/components/schemas/{model}"

ERRORS = {
    400: "the request is not what the protocol or the model asks for; the field is named",
    401: "a key is wanted, or this one is not valid (only where the server has keys)",
    403: "loading and unloading is not for this caller",
    404: "no such model, version or output; or the model was unloaded by request",
    408: "the body did not come on",
    409: "the model does not fit into the budget: what it needs and what is free; or it is being uploaded",
    413: "the body is over the limit",
    415: "the body is compressed in a way that is not read (Content-Encoding)",
    500: "the model's scores are NaN or infinite, or a fault of the server; its log says more",
    503: "not ready, out of service, a queue that is full (with Retry-After), a read that failed, no disk",
    504: "no answer in time",
}


@dataclass(frozen=True)
class Content:
    """A body of one media type; ``schema``: a model of ``schemas``, or as JSON Schema has it.

    ``example``: of a body that any model takes, where there is one; a test sends it.
    """

    schema: type[BaseModel] | Document
    media: str = _JSON
    example: Document | None = None


@dataclass(frozen=True)
class Operation:
    """What an endpoint takes and gives: bodies by status, statuses of errors, headers that it reads."""

    answers: Mapping[int, tuple[Content, ...]]
    errors: tuple[int, ...] = ()
    takes: tuple[Content, ...] = field(default=())
    may_be_empty: bool = False
    headers: tuple[Document, ...] = ()

    def bodies(self) -> Iterator[Content]:
        yield from self.takes
        for contents in self.answers.values():
            yield from contents


_KNOWN = (404, 409, 503)
_INFERENCE = (400, 404, 408, 409, 413, 415, 500, 503, 504)
_IMAGE = (
    Content({"type": "string", "format": "binary"}, "image/*"),
    Content(schemas.ImageForm, "multipart/form-data"),
)
_INDEX: Document = {"type": "array", "items": {"$ref": REFERENCE.format(model="IndexEntry")}}


def _gives(schema: type[BaseModel] | Document, *errors: int) -> Operation:
    return Operation({200: (Content(schema),)}, errors)


def _takes(
    given: type[BaseModel], example: Document, schema: type[BaseModel] | Document, *errors: int
) -> Operation:
    """An endpoint whose body may be left out."""
    body = Content(given, example=example)
    return Operation({200: (Content(schema),)}, (400, 408, 413, *errors), (body,), True)


def _header(name: str, description: str, schema: Document) -> Document:
    return {"name": name, "in": "header", "description": description, "schema": schema}


def _shared_memory(root: str) -> dict[tuple[str, str], Operation]:
    """Return the operations of one kind of shared memory, of which there is none."""
    empty_list, empty_object = {"type": "array", "maxItems": 0}, {"type": "object"}
    found: dict[tuple[str, str], Operation] = {}
    for place in ("", "/region/{region}"):
        found["get", f"{root}{place}/status"] = _gives(empty_list)
        found["post", f"{root}{place}/unregister"] = _gives(empty_object)
    return found


_BINARY = Content({"type": "string", "format": "binary"}, "application/octet-stream")
_FRAMING = (
    _header(
        "Inference-Header-Content-Length",
        "bytes of JSON before raw tensors; without it all of the body is JSON",
        {"type": "integer", "minimum": 0},
    ),
    _header(
        "Content-Encoding",
        "how the body is compressed",
        {"type": "string", "enum": ["identity", "gzip", "deflate"]},
    ),
)


#: By method and path. What has a model's version in its path is the same without it.
OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("get", "/v2"): _gives(schemas.ServerMetadata),
    ("get", "/v2/health/live"): _gives(schemas.ServerLive),
    ("get", "/v2/health/ready"): Operation(
        {200: (Content(schemas.ServerReady),), 503: (Content(schemas.ServerReady),)}
    ),
    ("get", "/metrics"): Operation({200: (Content({"type": "string"}, "text/plain"),)}),
    ("get", "/v2/models/{name}"): _gives(schemas.ModelMetadata, *_KNOWN),
    ("get", "/v2/models/{name}/ready"): _gives(schemas.ModelReady, *_KNOWN),
    ("get", "/v2/models/{name}/config"): _gives(extensions.ModelConfig, *_KNOWN),
    ("get", "/v2/models/{name}/stats"): _gives(extensions.Statistics, *_KNOWN),
    ("get", "/v2/models/stats"): _gives(extensions.Statistics),
    ("post", "/v2/models/{name}/infer"): Operation(
        {200: (Content(schemas.InferResponse), _BINARY)},
        _INFERENCE,
        (Content(schemas.InferRequest), _BINARY),
        headers=_FRAMING,
    ),
    ("post", "/v2/models/{name}:classify"): Operation(
        {200: (Content(schemas.Classification),)}, _INFERENCE, _IMAGE
    ),
    ("post", "/v2/models/{name}:detect"): Operation(
        {200: (Content(schemas.Detections),)}, _INFERENCE, _IMAGE
    ),
    ("post", "/v2/repository/index"): _takes(
        *(extensions.IndexRequest, {"ready": True}, _INDEX), 404
    ),
    ("post", "/v2/repository/models/{name}/load"): _takes(
        *(extensions.LoadRequest, {"parameters": {}}, schemas.ModelState),
        *(403, 404, 409, 500, 503),
    ),
    ("post", "/v2/repository/models/{name}/replan"): Operation(
        {200: (Content(schemas.Replanned),)},
        (400, 403, 404, 408, 409, 413, 500, 503),
        (Content(Replan, example={"memory_bytes": None}),),
    ),
    ("post", "/v2/repository/models/{name}/upload"): Operation(
        {200: (Content(schemas.Placed),)},
        (400, 403, 408, 409, 413, 415, 500, 503, 504),
        (Content({"type": "string", "format": "binary"}, "application/octet-stream"),),
    ),
    ("post", "/v2/repository/models/{name}/unload"): _takes(
        *(extensions.UnloadRequest, {"parameters": {}}, schemas.ModelState), 403, 404
    ),
    ("get", "/v2/trace/setting"): _gives(extensions.TraceSettings),
    ("get", "/v2/models/{name}/trace/setting"): _gives(extensions.TraceSettings, *_KNOWN),
    ("get", "/v2/logging"): _gives(extensions.LogSettings),
    **_shared_memory("/v2/systemsharedmemory"),
    **_shared_memory("/v2/cudasharedmemory"),
}
