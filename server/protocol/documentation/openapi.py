"""/openapi.json: FastAPI's document of paths and parameters, completed by the table of operations.py."""

from collections.abc import Callable

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.access.guard import OPEN_PATHS
from server.protocol.documentation import schemas
from server.protocol.documentation.operations import (
    ERRORS,
    OPERATIONS,
    REFERENCE,
    Content,
    Document,
    Operation,
)

# Whether it is asked for, the operator decides.
_KEYS = {"key": {"type": "http", "scheme": "bearer"}}


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
            operation = OPERATIONS[method, path.replace("/versions/{version}", "")]
            described.update(_described(operation, described))
            if path not in OPEN_PATHS:
                described["responses"]["401"] = _error(401)
    document["components"] = {"schemas": _components(), "securitySchemes": _KEYS}
    document["security"] = [{}, {"key": []}]
    return document


def _described(operation: Operation, described: Document) -> Document:
    answers = {str(status): _answer(*contents) for status, contents in operation.answers.items()}
    errors = {str(status): _error(status) for status in operation.errors}
    found: Document = {"responses": {**answers, **errors}}
    if operation.takes:
        body = {"required": not operation.may_be_empty, "content": _contents(*operation.takes)}
        found["requestBody"] = body
    if operation.headers:
        found["parameters"] = [*described.get("parameters", ()), *operation.headers]
    return found


def _answer(*contents: Content) -> Document:
    schema = contents[0].schema
    text = None if isinstance(schema, dict) else schema.__doc__
    return {"description": (text or "The answer.").strip(), "content": _contents(*contents)}


def _error(status: int) -> Document:
    found = {"description": ERRORS[status], "content": _contents(Content(schemas.Error))}
    if status == 503:
        retry = {"description": "seconds, where waiting helps", "schema": {"type": "integer"}}
        found["headers"] = {"Retry-After": retry}
    return found


def _contents(*contents: Content) -> Document:
    return {content.media: _content(content) for content in contents}


def _content(content: Content) -> Document:
    example = {} if content.example is None else {"example": content.example}
    return {"schema": _schema(content.schema), **example}


def _schema(schema: type[BaseModel] | Document) -> Document:
    if isinstance(schema, dict):
        return schema
    return {"$ref": REFERENCE.format(model=schema.__name__)}


def _components() -> Document:
    used: set[type[BaseModel]] = {schemas.Error, schemas.IndexEntry}
    for operation in OPERATIONS.values():
        used.update(body.schema for body in operation.bodies() if not isinstance(body.schema, dict))
    models = sorted(used, key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template=REFERENCE
    )
    found: Document = definitions["$defs"]
    return found
