"""/openapi.json, and /docs, which shows it."""

import inspect
import json
import re
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi

from server.errors import NotFoundError
from server.protocol.answers import FILE_HEADERS, Answer, Headers, file_answer, listed, page_headers
from server.protocol.docstrings import restore_docstrings
from server.protocol.documentation import Document, referenced_schemas
from server.protocol.routing import CurrentRequest, Route, serves
from server.protocol.schemas import REFERENCED

# The operator decides whether a key is asked for.
_KEYS = {"key": {"type": "http", "scheme": "bearer"}}
# FastAPI's own error, which no route gives: what it finds wrong is a 400 here.
_INVALID = "422"
_REFERENCE = re.compile(r'"#/components/schemas/(\w+)"')


def document(app: FastAPI) -> Document:
    """Return what FastAPI says of ``app``, with the schemas that routes refer to, and keys."""
    routes = [route for route in app.routes if isinstance(route, Route)]
    defined = [*(inspect.unwrap(route.endpoint) for route in routes), *REFERENCED.values()]
    restore_docstrings(definition.__module__ for definition in defined)
    for route in routes:
        route.describe()
    described = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        separate_input_output_schemas=False,
    )
    for operations in described["paths"].values():
        for operation in operations.values():
            operation["responses"].pop(_INVALID, None)
    schemas = {**described["components"]["schemas"], **referenced_schemas()}
    used, referenced = set[str](), _references(described["paths"])
    while referenced - used:
        used |= referenced
        referenced = _references([schemas[name] for name in used])
    described["components"] = {
        "schemas": {name: schemas[name] for name in sorted(used)},
        "securitySchemes": _KEYS,
    }
    described["security"] = [{}, {"key": []}]
    return described


def _references(document: object) -> set[str]:
    """Return the names of the schemas to which ``document`` refers."""
    return {*_REFERENCE.findall(json.dumps(document))}


# /docs: Swagger UI from an installed package, so that it works where no other host can be reached.

ROUTER = APIRouter(route_class=Route, include_in_schema=False)
_FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")


@serves(ROUTER, "GET", "/openapi.json")
async def openapi(asked: CurrentRequest) -> Document:
    """All endpoints, as OpenAPI has it, under the prefix of the application."""
    described: Document = asked.app.openapi()
    prefix = asked.root_path
    return {**described, "servers": [{"url": prefix}]} if prefix else described


@serves(ROUTER, "GET", "/docs")
async def docs() -> Answer:
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


@serves(ROUTER, "GET", "/docs/{name}")
async def file(name: str) -> Answer:
    """A file of Swagger UI."""
    if name not in _FILES:
        raise NotFoundError(f"{name!r}: not a file of /docs")
    place = Path(str(files("fastapi_offline") / "static" / name))
    return file_answer(place, FILE_HEADERS)
