"""/docs: Swagger UI from an installed package, so that it works where no other host can be reached."""

from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse

from server.errors import NotFoundError
from server.protocol.browsers import FILE_HEADERS, page_headers

router = APIRouter(include_in_schema=False)

_FILES = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon.png")


@router.get("/docs")
async def docs() -> HTMLResponse:
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


@router.get("/docs/{name}")
async def file(name: str) -> FileResponse:
    """A file of Swagger UI."""
    if name not in _FILES:
        raise NotFoundError(f"{name!r}: not a file of /docs")
    place = Path(str(files("fastapi_offline") / "static" / name))
    return FileResponse(place, headers=FILE_HEADERS)
