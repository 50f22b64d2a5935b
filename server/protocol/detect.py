"""Detection of objects: photograph in, labelled boxes out."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import JSONResponse

from models.detection.boxes import Box, Limits, boxes_among, seen
from models.detection.decoding import Candidates
from models.detection.recipe import Detection
from models.images.placement import Size
from models.images.preprocess import Preprocess
from models.packs.pack import Pack
from pipeline.execution.given import Arrays
from pipeline.execution.statistics import SweepStatistics
from server.protocol.pictures import Picture, read_picture
from server.protocol.serving import ContextDependency, Kept, Parts, run_model

router = APIRouter(tags=["inference"])

Fraction = Annotated[float | None, Query(ge=0, le=1, allow_inf_nan=False)]


def _limits(
    score_threshold: Fraction = None,
    iou_threshold: Fraction = None,
    max_detections: Annotated[int | None, Query(ge=1)] = None,
    clip: bool = True,
) -> Limits:
    return Limits(score_threshold, iou_threshold, max_detections, clip)


@router.post("/v2/models/{name}:detect")
@router.post("/v2/models/{name}/versions/{version}:detect")
async def detect(
    context: ContextDependency,
    request: Request,
    name: str,
    limits: Annotated[Limits, Depends(_limits)],
    version: str | None = None,
) -> JSONResponse:
    """Find the objects in the image (raw body, or the file of a multipart form), best score first.

    Boxes are x_min, y_min, x_max, y_max in pixels of the upright image.
    """

    async def read(pack: Pack) -> Picture:
        return await read_picture(context, request, name, pack, _fault(name, pack))

    def keep(picture: Picture, outputs: Arrays, pack: Pack) -> Kept[Candidates]:
        found = seen(outputs, *_recipes(pack), limits)
        return Kept(found, found.n_bytes)

    async def respond(
        picture: Picture, found: Candidates, statistics: SweepStatistics, pack: Pack
    ) -> JSONResponse:
        # Thousands of boxes, compared and written, would hold up every other request of the event loop.
        boxes = partial(boxes_among, found, *_recipes(pack), picture.size, limits)
        return await asyncio.to_thread(_response, name, pack, picture.size, boxes, statistics)

    return await run_model(context, request, name, version, Parts(read, keep, respond))


def _fault(name: str, pack: Pack) -> str | None:
    manifest = pack.manifest
    if manifest.detection is None:
        return f"model {name!r} does not detect objects: it was compiled without --detection"
    if manifest.preprocess is None:
        return f"model {name!r} does not take images: it was compiled without --preprocess"
    return None


def _recipes(pack: Pack) -> tuple[Detection, Preprocess]:
    detection, preprocess = pack.manifest.detection, pack.manifest.preprocess
    assert detection is not None
    assert preprocess is not None
    return detection, preprocess


def _response(
    name: str,
    pack: Pack,
    size: Size,
    boxes: Callable[[], list[Box]],
    statistics: SweepStatistics,
) -> JSONResponse:
    return JSONResponse(
        {
            "model_name": name,
            "model_version": pack.version,
            "image": {"width": size[0], "height": size[1]},
            "detections": [box.as_dict() for box in boxes()],
            "delay_ms": statistics.delay_seconds * 1e3,
        }
    )
