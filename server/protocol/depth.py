"""Depth of a photograph: photograph in, a picture or numbers for each of its pixels out."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.responses import Response

from models.depth import DepthMap, Floats, depth_of
from models.images.placement import Size
from models.packs.manifest import Manifest
from pipeline.budget.request_needs import map_bytes
from pipeline.execution.given import Arrays
from server.errors import InvalidRequestError
from server.protocol.answers import Answer, in_pieces
from server.protocol.documentation import (
    INFERENCE,
    NPY,
    NPY_FILE,
    PICTURE,
    PNG_FILE,
    also,
    errors,
    takes,
)
from server.protocol.pictures import PNG, drawn_answer, preview_of, read_picture
from server.protocol.routing import CurrentRequest, Route, of_model, serves
from server.protocol.serving import Inference, Kept
from server.requests.depths import headers, npy, png
from server.requests.png import PACKER_BYTES

ROUTER = APIRouter(tags=["inference"], route_class=Route)


class _PngResponse(Response):
    """For the document alone: what a route answers that gives no JSON."""

    media_type = PNG


class DepthQuery(BaseModel):
    """``format``: a picture in shades of grey of so many ``bits``, or float32 for numpy.load.

    ``size``: of the photograph, or the network's. ``draw``: colours over the photograph, PNG.
    """

    format: Literal["png", "npy"] = "png"
    bits: Literal["8", "16"] = "16"
    size: Literal["photograph", "network"] = "photograph"
    draw: bool = False


@serves(
    ROUTER,
    "POST",
    *of_model(":depth"),
    response_class=_PngResponse,
    responses={**also({**PNG_FILE, **NPY_FILE}), **errors(*INFERENCE)},
    openapi_extra=takes(PICTURE),
)
async def depth(
    request: CurrentRequest,
    name: str,
    query: Annotated[DepthQuery, Query()],
    version: str | None = None,
) -> Answer:
    """Estimate the depth at each pixel of the image: shades of grey in a PNG, or the network's numbers.

    In a PNG the least number is 0 and the greatest all bits; headers `X-Depth-Minimum` and
    `X-Depth-Maximum` have both.
    """
    client, preview = request.client, preview_of(request, query.draw)
    async with Inference(request.service, request.exchange, name, version) as model:
        with model.reading():
            picture, size = await read_picture(request, model, "depth", preview=preview)
        recipe = model.manifest.depth
        assert recipe is not None

        def keep(outputs: Arrays) -> Kept[Floats]:
            values = depth_of(recipe, outputs[recipe.output])
            if values is None:
                raise InvalidRequestError(
                    f"output {recipe.output!r} has NaN or infinite numbers; infer gives it as binary data"
                )
            more_bytes = PACKER_BYTES if preview is None else preview.n_bytes(size)
            return Kept(values, map_bytes(model.manifest, size) + more_bytes)

        values = await model.compute(picture, keep)
        if preview is not None:
            from models.drawing import draw_depth  # fonts are for those who preview

            drawn = _over(model.manifest, values, size, preview.size_of(size))
            client.more_headers += headers(await request.service.aside.do(drawn.range))
            return await drawn_answer(request, preview, lambda image: draw_depth(image, drawn))
        if query.size == "network":
            depth_map = DepthMap.of_network(values)
        else:
            depth_map = _over(model.manifest, values, size, size)
        # On a thread: making all rows of a large photograph would hold up the event loop.
        span = await request.service.aside.do(depth_map.range)
        client.more_headers += headers(span)
        if query.format == "npy":
            return await in_pieces(client, lambda: npy(depth_map), media=NPY)
        return await in_pieces(client, lambda: png(depth_map, span, int(query.bits)), media=PNG)


def _over(manifest: Manifest, values: Floats, size: Size, drawn_size: Size) -> DepthMap:
    """Return depth over a photograph of ``size`` as ``drawn_size``."""
    assert manifest.preprocess is not None
    placement = manifest.preprocess.placement(size, whole=True)
    return DepthMap.of_photograph(values, placement, drawn_size)
