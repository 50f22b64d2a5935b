"""Detection of objects: photograph in, labelled boxes out."""

import asyncio
import json
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, Field

from models.detection.boxes import Boxes, BoxLimits, boxes_among, boxes_bytes, seen
from models.detection.candidates import Candidates
from models.detection.recipe import Detection
from models.images.preprocess import Preprocess
from models.packs.manifest import Manifest
from pipeline.execution.given import Arrays
from server.memory.request_needs import boxes_room
from server.protocol.answers import Pieces
from server.protocol.pictures import read_picture
from server.protocol.routing import Asked
from server.protocol.serving import Inference, Kept

# How many are written at once, within a millisecond or so.
_BOXES_A_PIECE = 256

Fraction = Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)]


class DetectQuery(BaseModel):
    """Which boxes are told; None: as the model has it."""

    score_threshold: Fraction = None
    iou_threshold: Fraction = None
    max_detections: Annotated[int | None, Field(ge=1)] = None
    clip: bool = True


async def detect(asked: Asked, name: str, query: DetectQuery, version: str | None = None) -> Pieces:
    """Find the objects in the image (raw body, or the file of a multipart form), best score first.

    Boxes are x_min, y_min, x_max, y_max in pixels of the upright image.
    """
    exchange = asked.exchange
    limits = BoxLimits(query.score_threshold, query.iou_threshold, query.max_detections, query.clip)
    async with Inference(asked.context, exchange, name, version) as model:
        async with model.reading():
            picture = await read_picture(asked, model, "detect", _fault(name, model.manifest))
        recipes = _recipes(model.manifest)

        def keep(outputs: Arrays) -> Kept[Candidates]:
            found = seen(outputs, *recipes, limits, boxes_room(exchange.lease.memory.room_bytes))
            return Kept(found, boxes_bytes(found))

        found = await model.compute(picture, keep)
        # Thousands of boxes, compared with each other, would hold up every other request of the event loop.
        boxes = await asyncio.to_thread(boxes_among, found, *recipes, picture.size, limits)
        head = {
            "model_name": name,
            "model_version": model.pack.version,
            "image": {"width": picture.size[0], "height": picture.size[1]},
        }
        tail = {"delay_ms": model.delay_ms}
        return Pieces(lambda: _pieces(head, boxes, tail))


def _fault(name: str, manifest: Manifest) -> str | None:
    if manifest.detection is None:
        return f"model {name!r} does not detect objects: it was compiled without --detection"
    return None


def _recipes(manifest: Manifest) -> tuple[Detection, Preprocess]:
    detection, preprocess = manifest.detection, manifest.preprocess
    assert detection is not None
    assert preprocess is not None
    return detection, preprocess


def _pieces(head: dict[str, Any], boxes: Boxes, tail: dict[str, Any]) -> Iterator[bytes]:
    """Yield one JSON object: the fields of ``head``, the boxes as detections, the fields of ``tail``."""
    text = _json(head)[:-1] + ',"detections":['
    for first in range(0, len(boxes), _BOXES_A_PIECE):
        if first:
            yield text.encode()
            text = ","
        some = boxes.part(first, first + _BOXES_A_PIECE)
        text += ",".join(_json(box.as_dict()) for box in some)
    yield (text + "]," + _json(tail)[1:]).encode()


def _json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
