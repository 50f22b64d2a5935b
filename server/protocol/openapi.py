"""What is made of the table of routes: /openapi.json, and /docs."""

import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from inspect import cleandoc
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from server.errors import NotFoundError
from server.protocol import schemas
from server.protocol.answers import FILE_HEADERS, Answer, Headers, file_answer, listed, page_headers
from server.protocol.routing import Asked, Content, Document, Route, Table

# The operator decides whether a key is asked for.
_KEYS = {"key": {"type": "http", "scheme": "bearer"}}

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
_PART = re.compile(r"\{(\w+)\}")


def document(app: FastAPI, table: Table) -> Document:
    """Return what /openapi.json says of ``app``, which answers by ``table``."""
    described = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=()
    )
    for route in table.routes:
        for path in route.paths if route.group else ():
            operations = described["paths"].setdefault(path, {})
            operations[route.method.lower()] = _operation(route, path)
    described["components"] = {"schemas": _components(table), "securitySchemes": _KEYS}
    described["security"] = [{}, {"key": []}]
    return described


def _operation(route: Route, path: str) -> Document:
    name, method = route.answer.__name__, route.method.lower()
    operation: Document = {
        "tags": [route.group],
        "summary": name.replace("_", " ").title(),
        "description": cleandoc(route.answer.__doc__ or ""),
        "operationId": re.sub(r"\W", "_", name + path) + "_" + method,
    }
    if parameters := [*_parameters(route, path), *route.headers]:
        operation["parameters"] = parameters
    gives = {str(status): _answer(*contents) for status, contents in (route.gives or {}).items()}
    errors = route.errors if route.admitted == "open" else (*route.errors, 401)
    operation["responses"] = {
        **gives,
        **{str(status): _error(status, route.failed) for status in errors},
    }
    if route.takes:
        body = {"required": not route.may_be_empty, "content": _contents(*route.takes)}
        operation["requestBody"] = body
    return operation


def _parameters(route: Route, path: str) -> Iterator[Document]:
    for name in _PART.findall(path):
        schema = {"type": "string", "title": name.title()}
        yield {"name": name, "in": "path", "required": True, "schema": schema}
    query = route.query.model_json_schema()["properties"] if route.query else {}
    for name, schema in query.items():
        yield {"name": name, "in": "query", "required": False, "schema": schema}


def _answer(*contents: Content) -> Document:
    schema = contents[0].schema
    text = None if isinstance(schema, dict) else schema.__doc__
    return {"description": (text or "The answer.").strip(), "content": _contents(*contents)}


def _error(status: int, beside: Mapping[str, Any] | None) -> Document:
    described = {
        "description": _ERRORS[status],
        "content": _contents(Content(_error_schema(beside))),
    }
    if status == 503:
        retry = {"description": "seconds, where waiting helps", "schema": {"type": "integer"}}
        described["headers"] = {"Retry-After": retry}
    return described


def _error_schema(beside: Mapping[str, Any] | None) -> type[BaseModel] | Document:
    """Return the schema of an error that has the fields ``beside`` its message."""
    if not beside:
        return schemas.Error
    fields = {name: {"const": value} for name, value in beside.items()}
    return {
        "type": "object",
        "properties": {**fields, "error": {"type": "string"}},
        "required": [*fields, "error"],
        "additionalProperties": False,
    }


def _contents(*contents: Content) -> Document:
    return {content.media: _content(content) for content in contents}


def _content(content: Content) -> Document:
    schema = content.schema
    example = {} if content.example is None else {"example": content.example}
    return {
        "schema": schema if isinstance(schema, dict) else schemas.reference(schema),
        **example,
    }


def _components(table: Table) -> Document:
    used: set[type[BaseModel]] = {schemas.Error, schemas.IndexEntry}
    for route in table.routes:
        bodies = [
            *route.takes,
            *(each for schemas_by_name in (route.gives or {}).values() for each in schemas_by_name),
        ]
        used.update(body.schema for body in bodies if not isinstance(body.schema, dict))
    models = sorted(used, key=lambda model: model.__name__)
    _, definitions = models_json_schema(
        [(model, "validation") for model in models], ref_template=schemas.REFERENCE
    )
    schemas_by_name: Document = definitions["$defs"]
    return schemas_by_name


# /docs: Swagger UI from an installed package, so that it works where no other host can be reached.

_FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")


async def openapi(asked: Asked) -> Document:
    """All endpoints, as OpenAPI has it."""
    return asked.app.openapi()


async def docs(asked: Asked) -> Answer:
    """The endpoints, to read and to try. Addresses are relative: a proxy may put it elsewhere."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Layerstream",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
        swagger_ui_parameters={"validatorUrl": None},
    )
    body = bytes(page.body)
    headers: Headers = [
        (b"content-length", b"%d" % len(body)),
        (b"content-type", b"text/html; charset=utf-8"),
    ]
    return Answer(body, headers + listed(page_headers(body.decode())))


async def file(asked: Asked, name: str) -> Answer:
    """A file of Swagger UI."""
    if name not in _FILES:
        raise NotFoundError(f"{name!r}: not a file of /docs")
    place = Path(str(files("fastapi_offline") / "static" / name))
    return file_answer(place, FILE_HEADERS)
