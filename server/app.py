"""The FastAPI application: wiring only."""

import contextlib
from collections.abc import AsyncIterator
from functools import lru_cache, partial

from fastapi import FastAPI
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from server.access.guard import Guard
from server.context import Context
from server.middleware import RequestMiddleware
from server.operation.process import installed_version
from server.page import routes as page
from server.page.events import Watchers
from server.page.looks import Looks
from server.page.state import current_state
from server.protocol import (
    classify,
    detect,
    health,
    infer,
    metadata,
    repository,
    uploading,
)
from server.protocol.documentation import docs
from server.protocol.documentation.openapi import describe
from server.protocol.errors import register_handlers
from server.protocol.extensions import config, statistics, unserved
from server.protocol.front import Front
from server.protocol.methods import HeadMiddleware
from server.settings.settings import Settings


class Application(FastAPI):
    """FastAPI behind what happens to every request; ``front`` is set once it is put together."""

    front: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan."""
        answer = self.front if scope["type"] == "http" else super().__call__
        await answer(scope, receive, send)

    def put_together(self, context: Context, log_all: bool) -> None:
        """Order what a request goes through: its exchange, its key, HEAD as GET, infer, everything else."""
        others = HeadMiddleware(super().__call__)
        guarded = Guard(Front(self, context, others), context.access)
        self.front = RequestMiddleware(guarded, context.exchanges, log_all, context.tracing)


def create_app(settings: Settings, context: Context | None = None) -> FastAPI:
    """Return the application; its lifespan loads the models and, at the end, drains them.

    Those of a ``context`` that is given are loaded by whoever gives it, while requests are answered.
    """
    loads = context is None
    context = context or Context(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            if loads:
                await context.start()
            yield
        finally:
            await context.stop()

    app = Application(
        title="Layerstream",
        description="Open Inference Protocol, version 2, over models streamed from disk.",
        version=installed_version(),
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.openapi = describe(app)  # type: ignore[method-assign]
    app.state.context = context
    app.state.watchers = Watchers(partial(current_state, context), context.draining)
    app.state.looks = Looks(context.repository)
    app.router.routes.extend(_routes())
    register_handlers(app)
    app.put_together(context, settings.access_log == "all")
    return app


@lru_cache(maxsize=1)
def _routes() -> list[BaseRoute]:
    """Return all endpoints; what FastAPI makes of them is the same for every application."""
    # The statistics of all models before a model that is called stats.
    models = (infer, classify, detect, health, statistics, config, metadata, repository)
    groups = (*models, uploading, unserved, docs, page)
    return [route for group in groups for route in group.router.routes]
