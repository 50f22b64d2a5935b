"""/openapi.json: every endpoint with the bodies that it takes and the statuses that it answers.

Handlers read bodies and write answers themselves, so FastAPI knows only paths and parameters; the rest is
one table here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.protocol.documentation import schemas

Document = dict[str, Any]

_JSON = "application/json"
_REFERENCE = "#/components/schemas/{model}"

_ERRORS = {
    400: "the request is not what the protocol or the model asks for; the field is named",
    403: "loading and unloading is not for this caller",
    404: "no such model, version or output",
    409: "the model does not fit into the budget: what it needs and what is free; or it is being uploaded",
    413: "the body is over the limit",
    415: "the body is compressed (Content-Encoding)",
    500: "the answer cannot be sent, or a fault of the server; its log says more",
    503: "not loaded, out of service, a queue that is full (with Retry-After), a read that failed, no disk",
    504: "no answer in time",
}


@dataclass(frozen=True)
class Content:
    """A body of one media type; ``schema``: a model of ``schemas``, or as JSON Schema has it."""

    schema: type[BaseModel] | Document
    media: str = _JSON


@dataclass(frozen=True)
class Operation:
    """What an endpoint takes and gives: bodies by status, and statuses of errors."""

    answers: Mapping[int, Content]
    errors: tuple[int, ...] = ()
    takes: tuple[Content, ...] = field(default=())

    def bodies(self) -> Iterator[Content]:
        yield from self.takes
        yield from self.answers.values()


_KNOWN = (404, 409, 503)
_INFERENCE = (400, 404, 409, 413, 415, 500, 503, 504)
_IMAGE = (
    Content({"type": "string", "format": "binary"}, "image/*"),
    Content(schemas.ImageForm, "multipart/form-data"),
)
_INDEX: Document = {"type": "array", "items": {"$ref": _REFERENCE.format(model="IndexEntry")}}


def _gives(schema: type[BaseModel] | Document, *errors: int) -> Operation:
    return Operation({200: Content(schema)}, errors)


#: By method and path. What has a model's version in its path is the same without it.
OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("get", "/v2"): _gives(schemas.ServerMetadata),
    ("get", "/v2/health/live"): _gives(schemas.ServerLive),
    ("get", "/v2/health/ready"): Operation(
        {200: Content(schemas.ServerReady), 503: Content(schemas.ServerReady)}
    ),
    ("get", "/metrics"): Operation({200: Content({"type": "string"}, "text/plain")}),
    ("get", "/v2/models/{name}"): _gives(schemas.ModelMetadata, *_KNOWN),
    ("get", "/v2/models/{name}/ready"): _gives(schemas.ModelReady, *_KNOWN),
    ("post", "/v2/models/{name}/infer"): Operation(
        {200: Content(schemas.InferResponse)}, _INFERENCE, (Content(schemas.InferRequest),)
    ),
    ("post", "/v2/models/{name}:classify"): Operation(
        {200: Content(schemas.Classification)}, _INFERENCE, _IMAGE
    ),
    ("post", "/v2/models/{name}:detect"): Operation(
        {200: Content(schemas.Detections)}, _INFERENCE, _IMAGE
    ),
    ("post", "/v2/repository/index"): _gives(_INDEX, 404),
    ("post", "/v2/repository/models/{name}/load"): _gives(
        schemas.ModelState, 403, 404, 409, 500, 503
    ),
    ("post", "/v2/repository/models/{name}/unload"): _gives(schemas.ModelState, 403, 404),
    ("post", "/v2/repository/models/{name}/upload"): Operation(
        {200: Content(schemas.Placed)},
        (400, 403, 409, 413, 500, 503, 504),
        (Content({"type": "string", "format": "binary"}, "application/octet-stream"),),
    ),
}


def describe(app: FastAPI) -> Callable[[], Document]:
    """Return what ``app`` calls for its document, which is made when it is first asked for."""
    made: list[Document] = []

    def document() -> Document:
        if not made:
            made.append(_document(app))
        return made[0]

    return document


def _document(app: FastAPI) -> Document:
    document = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    for path, operations in document["paths"].items():
        for method, described in operations.items():
            described.update(
                _described(OPERATIONS[method, path.replace("/versions/{version}", "")])
            )
    document["components"] = {"schemas": _components()}
    return document


def _described(operation: Operation) -> Document:
    answers = {str(status): _answer(content) for status, content in operation.answers.items()}
    errors = {str(status): _error(status) for status in operation.errors}
    found: Document = {"responses": {**answers, **errors}}
    if operation.takes:
        found["requestBody"] = {"required": True, "content": _contents(*operation.takes)}
    return found


def _answer(content: Content) -> Document:
    text = None if isinstance(content.schema, dict) else content.schema.__doc__
    return {"description": (text or "The answer.").strip(), "content": _contents(content)}


def _error(status: int) -> Document:
    found = {"description": _ERRORS[status], "content": _contents(Content(schemas.Error))}
    if status == 503:
        retry = {"description": "seconds, when the queue is full", "schema": {"type": "integer"}}
        found["headers"] = {"Retry-After": retry}
    return found


def _contents(*contents: Content) -> Document:
    return {content.media: {"schema": _schema(content.schema)} for content in contents}


def _schema(schema: type[BaseModel] | Document) -> Document:
    if isinstance(schema, dict):
        return schema
    return {"$ref": _REFERENCE.format(model=schema.__name__)}


def _components() -> Document:
    used: set[type[BaseModel]] = {schemas.Error, schemas.IndexEntry}
    for operation in OPERATIONS.values():
        used.update(body.schema for body in operation.bodies() if not isinstance(body.schema, dict))
    models = sorted(used, key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template=_REFERENCE
    )
    found: Document = definitions["$defs"]
    return found
