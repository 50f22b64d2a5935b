"""The FastAPI application: wiring only."""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI

from server.context import Context
from server.middleware import RequestMiddleware
from server.process import installed_version
from server.protocol import classify, detect, docs, health, infer, metadata, repository
from server.protocol.errors import register_handlers
from server.protocol.head import HeadMiddleware
from server.protocol.openapi import describe
from server.settings import Settings


def create_app(settings: Settings, context: Context | None = None) -> FastAPI:
    """Return the application; its lifespan loads the models and, at the end, drains them."""
    context = context or Context(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            await context.start()
            yield
        finally:
            await context.stop()

    app = FastAPI(
        title="Layerstream",
        description="Open Inference Protocol, version 2, over models streamed from disk.",
        version=installed_version(),
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.openapi = describe(app)  # type: ignore[method-assign]
    app.state.context = context
    for group in (infer, classify, detect, health, metadata, repository, docs):
        app.include_router(group.router)
    register_handlers(app)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(RequestMiddleware, exchanges=context.exchanges)
    return app
