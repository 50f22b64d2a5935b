"""The service as a FastAPI application: its routes, middleware and handlers of errors; wiring only."""

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.routing import BaseRoute

from server.codec.messages import first_error
from server.errors import InvalidRequestError
from server.operation.process import installed_version
from server.page import routes as page
from server.page.looks import Looks
from server.page.state import Watchers, current_state
from server.protocol import (
    deepstack,
    depth,
    embedding,
    infer,
    metadata,
    openai,
    openapi,
    recognition,
    repository,
)
from server.protocol.answers import Answer
from server.protocol.http_request import RequestMiddleware
from server.protocol.routing import RulesOfPaths, no_route
from server.service import Service
from server.settings.settings import Settings

# The first route that matches answers: those that short requests ask come first, NAME:ACTION before NAME,
# and fixed paths before those that a name would match as well.
_ROUTERS: tuple[APIRouter, ...] = (
    infer.TENSORS,
    recognition.ROUTER,
    depth.ROUTER,
    embedding.ROUTER,
    openai.ROUTER,
    infer.PICTURES,
    metadata.SERVER,
    metadata.HEALTH,
    metadata.METRICS,
    metadata.STATISTICS,
    metadata.MODELS,
    metadata.READY,
    repository.INDEX,
    repository.CHANGES,
    repository.UPLOADS,
    metadata.UNSERVED,
    openapi.ROUTER,
    page.PAGE,
    page.MODELS,
    page.SEARCHES,
)


def routes_of(settings: Settings) -> Sequence[BaseRoute]:
    """Return the routes of a server with these settings, in one list: an included router matches twice."""
    cameras = (deepstack.ROUTER,) if settings.deepstack else ()
    return [route for router in (*_ROUTERS, *cameras) for route in router.routes]


def create_app(source: Service | Settings) -> FastAPI:
    """Return the application of a service, which may be mounted in another one.

    Args:
        source: a service, which the caller enters; or settings: the application owns a service of them,
            ``state.service``, and its lifespan enters that.

    Raises:
        SettingsError: a setting cannot hold in a process of another program.
    """
    service = source if isinstance(source, Service) else Service(source)
    routes = routes_of(service.settings)
    app = FastAPI(
        title="Layerstream",
        description="Open Inference Protocol, version 2, over models streamed from disk.",
        version=installed_version(),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=None if service is source else service.lifespan,
        routes=list(routes),
        redirect_slashes=False,
        # Spans and figures of requests are ours (settings traces, access_log), and no request has two.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.router.default = no_route
    app.add_middleware(RequestMiddleware, service=service, rules=RulesOfPaths(routes).find)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.openapi = cache(partial(openapi.document, app))  # type: ignore[method-assign]
    app.state.service = service
    app.state.watchers = Watchers(
        partial(current_state, service), service.draining, start=service.history.as_dict
    )
    app.state.looks = Looks(service)
    return app


# FastAPI finds one error itself. All others have a status by their kind, over HTTP and gRPC alike (attend).


async def _invalid(request: Request, exc: Exception) -> Answer:
    """Raises InvalidRequestError: the query is not as the route has it."""
    assert isinstance(exc, RequestValidationError)
    errors: Any = exc.errors()
    raise InvalidRequestError(first_error(errors[:1])) from None
