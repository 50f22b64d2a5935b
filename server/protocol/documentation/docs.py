"""/docs: Swagger UI from an installed package, so that it works where no other host can be reached."""

from importlib.resources import files
from pathlib import Path

from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import FileResponse, HTMLResponse

from server.errors import NotFoundError
from server.protocol.browsers import FILE_HEADERS, page_headers
from server.protocol.routing import Asked, Document

_FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")


async def openapi(asked: Asked) -> Document:
    """All endpoints, as OpenAPI has it."""
    return asked.app.openapi()


async def docs(asked: Asked) -> HTMLResponse:
    """The endpoints, to read and to try. Addresses are relative: a proxy may put it elsewhere."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="Layerstream",
        swagger_js_url="docs/swagger-ui-bundle.js",
        swagger_css_url="docs/swagger-ui.css",
        swagger_favicon_url="docs/favicon.png",
        swagger_ui_parameters={"validatorUrl": None},
    )
    page.headers.update(page_headers(bytes(page.body).decode()))
    return page


async def file(asked: Asked, name: str) -> FileResponse:
    """A file of Swagger UI."""
    if name not in _FILES:
        raise NotFoundError(f"{name!r}: not a file of /docs")
    place = Path(str(files("fastapi_offline") / "static" / name))
    return FileResponse(place, headers=FILE_HEADERS)
