"""The FastAPI application: wiring only."""

import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI

from server.context import Context
from server.middleware import RequestMiddleware
from server.protocol import classify, detect, health, infer, metadata, repository
from server.protocol.errors import register_handlers
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
        lifespan=lifespan,
    )
    app.state.context = context
    for group in (infer, classify, detect, health, metadata, repository):
        app.include_router(group.router)
    register_handlers(app)
    app.add_middleware(RequestMiddleware, exchanges=context.exchanges)
    return app
