"""The table of routes: all that the server answers over HTTP.

Requests are routed by it; /openapi.json and the table in docs/reference/http.md are made of it.
"""

from typing import Any

from pydantic import BaseModel

from server.codec.messages import InferRequest
from server.page import routes as page
from server.protocol import deepstack, infer, metadata, openapi, recognition, repository, schemas
from server.protocol.routing import Content, Document, Route, Table
from server.settings.settings import Settings

_MODEL = "/v2/models/{name}[/versions/{version}]"
_REPOSITORY = "/v2/repository/models/{name}"

_KNOWN = (404, 409, 503)
_INFERENCE = (400, 404, 408, 409, 413, 415, 500, 503, 504)
_OBJECT = (400, 408, 413)
_LOADING = (403, 404, 409, 500, 503)
_FILE: Document = {"type": "string", "format": "binary"}
_BINARY = Content(_FILE, "application/octet-stream")
_IMAGE = (Content(_FILE, "image/*"), Content(schemas.ImageForm, "multipart/form-data"))
_INDEX: Document = {"type": "array", "items": schemas.reference(schemas.IndexEntry)}
_FRAMING: tuple[Document, ...] = (
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


def _gives(*schemas: type[BaseModel] | Document) -> dict[int, tuple[Content, ...]]:
    return {200: tuple(Content(schema) for schema in schemas)}


def _json(schema: type[BaseModel], example: Document) -> tuple[Content, ...]:
    return (Content(schema, example=example),)


def _inference() -> list[Route]:
    group: dict[str, Any] = {"group": "inference", "errors": _INFERENCE}
    tensors = {200: (Content(schemas.InferResponse), _BINARY)}
    takes = (Content(InferRequest), _BINARY)
    return [
        Route(
            *("POST", f"{_MODEL}/infer", infer.infer),
            **{**group, "gives": tensors, "takes": takes, "headers": _FRAMING},
        ),
        Route(
            *("POST", f"{_MODEL}:classify", recognition.classify),
            **{**group, "gives": _gives(schemas.Classification), "takes": _IMAGE},
            query=recognition.ClassifyQuery,
        ),
        Route(
            *("POST", f"{_MODEL}:detect", recognition.detect),
            **{**group, "gives": _gives(schemas.Detections), "takes": _IMAGE},
            query=recognition.DetectQuery,
        ),
        Route(
            *("POST", f"{_MODEL}:segment", recognition.segment),
            **{**group, "takes": _IMAGE},
            gives={200: (Content(schemas.Segmented), Content(_FILE, recognition.PNG))},
            query=recognition.SegmentQuery,
        ),
        Route(
            *("POST", f"{_MODEL}:infer", infer.infer_picture),
            **{**group, "gives": tensors, "takes": _IMAGE},
            query=infer.PictureQuery,
        ),
    ]


def _server() -> list[Route]:
    is_ready = {status: (Content(schemas.ServerReady),) for status in (200, 503)}
    figures = {200: (Content({"type": "string"}, "text/plain"),)}
    live = _gives(schemas.ServerLive)
    return [
        Route("GET", "/v2", metadata.server_metadata, "server", _gives(schemas.ServerMetadata)),
        Route("GET", "/v2/health/live", metadata.live, "server", live, admitted="open"),
        Route("GET", "/v2/health/ready", metadata.ready, "server", is_ready, admitted="open"),
        Route("GET", "/metrics", metadata.metrics, "server", figures, admitted="metrics"),
    ]


def _models() -> list[Route]:
    # The path of the first route would also be that of a model called "stats": fixed paths come first.
    return [
        Route("GET", path, answer, "models", _gives(schema), errors)
        for path, answer, schema, errors in (
            ("/v2/models/stats", metadata.all_statistics, schemas.Statistics, ()),
            (f"{_MODEL}/stats", metadata.model_statistics, schemas.Statistics, _KNOWN),
            (f"{_MODEL}/config", metadata.model_config, schemas.ModelConfig, _KNOWN),
            (_MODEL, metadata.model_metadata, schemas.ModelMetadata, _KNOWN),
            (f"{_MODEL}/ready", metadata.model_ready, schemas.ModelReady, _KNOWN),
        )
    ]


def _repository() -> list[Route]:
    group: dict[str, Any] = {"group": "repository"}
    admin: dict[str, Any] = {**group, "admitted": "admin"}
    state = _gives(schemas.ModelState)
    return [
        Route(
            *("POST", "/v2/repository/index", repository.index),
            **{**group, "gives": _gives(_INDEX), "errors": (*_OBJECT, 404)},
            takes=_json(schemas.IndexRequest, {"ready": True}),
            may_be_empty=True,
        ),
        Route(
            *("POST", f"{_REPOSITORY}/load", repository.load),
            **{**admin, "gives": state, "errors": (*_OBJECT, *_LOADING)},
            takes=_json(schemas.LoadRequest, {"parameters": {}}),
            may_be_empty=True,
        ),
        Route(
            *("POST", f"{_REPOSITORY}/replan", repository.replan),
            **{**admin, "gives": _gives(schemas.Replanned)},
            errors=(400, 403, 404, 408, 409, 413, 500, 503),
            takes=_json(repository.Replan, {"memory_bytes": None}),
        ),
        Route(
            *("POST", f"{_REPOSITORY}/unload", repository.unload),
            **{**admin, "gives": state, "errors": (*_OBJECT, 403, 404)},
            takes=_json(schemas.UnloadRequest, {"parameters": {}}),
            may_be_empty=True,
        ),
        Route(
            *("POST", f"{_REPOSITORY}/upload", repository.upload),
            body="upload",
            **{**admin, "gives": _gives(schemas.Placed)},
            errors=(400, 403, 408, 409, 413, 415, 500, 503, 504),
            takes=(_BINARY,),
            query=repository.UploadQuery,
        ),
    ]


def _unserved() -> list[Route]:
    traces, group = _gives(schemas.TraceSettings), "not served"
    routes = [
        Route("GET", "/v2/trace/setting", metadata.trace_settings, group, traces),
        Route(
            *("GET", "/v2/models/{name}/trace/setting", metadata.model_trace_settings),
            *(group, traces, _KNOWN),
        ),
        Route("GET", "/v2/logging", metadata.log_settings, group, _gives(schemas.LogSettings)),
    ]
    nothing = _gives({"type": "array", "maxItems": 0}), _gives({"type": "object"})
    for kind in ("system", "cuda"):
        memory = f"/v2/{kind}sharedmemory"
        region = f"{memory}[/region/{{region}}]"
        routes += [
            Route("GET", f"{region}/status", metadata.regions, group, nothing[0]),
            Route("POST", f"{region}/unregister", metadata.unregister, group, nothing[1]),
            # It is always refused, so no documentation has it.
            Route("POST", f"{memory}/region/{{region}}/register", metadata.register),
        ]
    return routes


def _pages() -> list[Route]:
    return [
        Route("GET", "/docs", openapi.docs),
        Route("GET", "/docs/{name}", openapi.file),
        Route("GET", "/openapi.json", openapi.openapi),
        Route("GET", "/", page.page, admitted="open"),
        Route("GET", "/page/files/{name}", page.file, admitted="open"),
        Route("GET", "/page/events", page.events),
        Route("GET", "/page/models/{name}/arena", page.arena, query=page.ArenaQuery),
        Route("GET", "/page/models/{name}/frontier", page.frontier, admitted="admin"),
    ]


def _cameras() -> list[Route]:
    group: dict[str, Any] = {"group": "cameras", "errors": _INFERENCE, "admitted": "form"}
    form = Content(schemas.CameraForm, "multipart/form-data")
    return [
        Route(
            *("POST", f"/v1/vision/{path}", answer),
            **{**group, "gives": _gives(schemas.CameraPredictions), "takes": (form, _IMAGE[0])},
            query=recognition.DetectQuery,
            failed={"success": False},
        )
        for path, answer in (
            ("detection", deepstack.detection),
            ("custom/{name}", deepstack.custom),
        )
    ]


TABLE = Table([*_inference(), *_server(), *_models(), *_repository(), *_unserved(), *_pages()])
#: The same with the routes that programs of cameras use (setting deepstack).
TABLE_WITH_CAMERAS = Table([*TABLE.routes, *_cameras()])


def table_of(settings: Settings) -> Table:
    """Return the routes of a server with these settings."""
    return TABLE_WITH_CAMERAS if settings.deepstack else TABLE
