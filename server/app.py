"""The FastAPI application: wiring only."""

import contextlib
from collections.abc import AsyncIterator
from functools import cache, partial

from fastapi import FastAPI

from server.context import Context
from server.operation.process import installed_version
from server.page.events import Watchers
from server.page.looks import Looks
from server.page.state import current_state
from server.protocol.documentation.openapi import document
from server.protocol.routing import answering
from server.routes import table_of
from server.settings.settings import Settings


def create_app(settings: Settings, context: Context | None = None) -> FastAPI:
    """Return the application; its lifespan loads the models and, at the end, drains them.

    Its router sees no request: ``state.front`` answers them.
    Those of a ``context`` that is given are loaded by whoever gives it, while requests are answered.
    """
    loads, table = context is None, table_of(settings)
    context = context or Context(settings)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            if loads:
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
        openapi_url=None,
        lifespan=lifespan,
    )
    app.openapi = cache(partial(document, app, table))  # type: ignore[method-assign]
    app.state.context = context
    app.state.watchers = Watchers(partial(current_state, context), context.draining)
    app.state.looks = Looks(context.repository)
    app.state.front = answering(app, context, table)
    return app
