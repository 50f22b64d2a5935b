"""Recognition on a photograph: photograph in, labels, boxes or a mask out."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from models.classification import top_classes
from models.detection.boxes import (
    Box,
    Boxes,
    BoxLimits,
    boxes_among,
    boxes_bytes,
    prototypes_in,
    seen,
)
from models.detection.candidates import Candidates
from models.detection.recipe import Detection
from models.images.placement import Size
from models.images.preprocess import Preprocess
from models.packs.manifest import Manifest
from models.segmentation import Bytes, Counted, Mask, classes_of
from pipeline.budget.request_needs import box_mask_bytes, boxes_room
from pipeline.execution.given import Arrays
from server.errors import InvalidRequestError
from server.protocol import schemas
from server.protocol.answers import Answer, in_pieces
from server.protocol.documentation import (
    INFERENCE,
    PICTURE,
    PNG_FILE,
    SOUND,
    also,
    errors,
    json_of,
    takes,
)
from server.protocol.http_request import HttpRequest
from server.protocol.pictures import PNG, SentPicture, drawn_answer, preview_of, read_picture
from server.protocol.routing import CurrentRequest, Route, of_model, serves
from server.protocol.serving import Inference, Kept
from server.protocol.sounds import accepts_sound, sound_question
from server.protocol.texts import TextRequest, text_question
from server.requests.masks import png, runs
from server.requests.png import PACKER_BYTES

ROUTER = APIRouter(tags=["inference"], route_class=Route)

# Classification of an image: photograph in, labels out.


class ClassifyQuery(BaseModel):
    """``top_k``: classes, best first."""

    top_k: Annotated[int, Field(ge=1)] = 5


@serves(
    ROUTER,
    "POST",
    *of_model(":classify"),
    response_model=schemas.Classification,
    responses=errors(*INFERENCE),
    openapi_extra=takes({**PICTURE, **json_of(TextRequest), **SOUND}),
)
async def classify(
    asked: CurrentRequest,
    name: str,
    query: Annotated[ClassifyQuery, Query()],
    version: str | None = None,
) -> dict[str, Any]:
    """Name what is in the image, or what the text or the sound is, best label first."""
    async with Inference(asked.service, asked.exchange, name, version) as model:
        classification = model.manifest.classification
        is_sound = accepts_sound(asked, model)
        if model.manifest.text is None and not is_sound:
            with model.reading():
                question, _ = await read_picture(asked, model, "classify")
            assert classification is not None
        elif classification is None:
            what = "sounds" if is_sound else "texts"
            raise InvalidRequestError(
                f"model {name!r} does not classify {what}: its output is not a vector of scores"
            )
        elif is_sound:
            question, _ = await sound_question(asked, model, "classify")
        else:
            question = await text_question(asked, model)
        output = classification.output
        scores = await model.compute(question, lambda found: _kept_best(found[output]))
        if not np.isfinite(scores).all():
            raise InvalidRequestError(
                f"output {output!r} has NaN or infinite scores; infer gives them as binary data"
            )
        best = top_classes(classification, scores, query.top_k)
        return {
            "model_name": name,
            "model_version": model.pack.version,
            "predictions": [item.as_dict() for item in best],
            "delay_ms": model.delay_ms,
        }


def _kept_best(scores: NDArray[Any]) -> Kept[NDArray[Any]]:
    return Kept(scores.copy(), scores.nbytes)


# Detection of objects: photograph in, labelled boxes out.

# Boxes of so many numbers are written at once, which takes about a millisecond.
_NUMBERS_A_PIECE = 1536
# So many are drawn on a photograph: each takes a millisecond or two.
_DRAWN_BOXES = 100
# Of a box without points, and what computing and writing a mask is worth.
_BOX_NUMBERS = 6
_MASK_NUMBERS = 1024

Fraction = Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)]


class BoxesQuery(BaseModel):
    """Which boxes are in the answer; None: as the model has it."""

    score_threshold: Fraction = None
    iou_threshold: Fraction = None
    max_detections: Annotated[int | None, Field(ge=1)] = None
    clip: bool = True

    def limits(self) -> BoxLimits:
        """Return the limits for the search."""
        return BoxLimits(self.score_threshold, self.iou_threshold, self.max_detections, self.clip)


class DetectQuery(BoxesQuery):
    """``draw``: the best are drawn on the image, PNG."""

    draw: bool = False


@dataclass(frozen=True)
class FoundObjects:
    """The objects in a picture of ``size``; ``delay_ms``: of the model alone."""

    boxes: Boxes
    size: Size
    model_version: str
    delay_ms: float


@serves(
    ROUTER,
    "POST",
    *of_model(":detect"),
    response_model=schemas.Detections,
    responses={**also(PNG_FILE), **errors(*INFERENCE)},
    openapi_extra=takes(PICTURE),
)
async def detect(
    asked: CurrentRequest,
    name: str,
    query: Annotated[DetectQuery, Query()],
    version: str | None = None,
) -> Answer:
    """Find the objects in the image, best score first.

    Boxes are x_min, y_min, x_max, y_max in pixels of the upright image.
    """

    def written(objects: FoundObjects) -> Iterator[bytes]:
        head = {
            "model_name": name,
            "model_version": objects.model_version,
            "image": {"width": objects.size[0], "height": objects.size[1]},
        }
        tail = {"delay_ms": objects.delay_ms}
        return box_pieces(head, "detections", objects.boxes, Box.as_dict, tail)

    return await find_objects(asked, name, query.limits, written, version, draws=query.draw)


async def find_objects(
    asked: HttpRequest,
    name: str,
    wanted: Callable[[], BoxLimits],
    written: Callable[[FoundObjects], Iterator[bytes]],
    version: str | None = None,
    *,
    begun: SentPicture | None = None,
    draws: bool = False,
) -> Answer:
    """Return the objects in the picture that is sent as they are ``written``.

    ``wanted``: called for the limits of boxes when the picture has come; ``begun``: what has come of the
    picture already. ``draws``: the best are drawn on the picture instead.
    """
    exchange, preview = asked.exchange, preview_of(asked, draws)
    async with Inference(asked.service, exchange, name, version) as model:
        with model.reading():
            picture, size = await read_picture(asked, model, "detect", begun, preview)
        limits, recipes = wanted(), _recipes(model.manifest)

        def keep(outputs: Arrays) -> Kept[tuple[Candidates, NDArray[np.float32] | None]]:
            mask_bytes = box_mask_bytes(model.manifest)
            more_bytes = mask_bytes + (0 if preview is None else preview.n_bytes(size))
            free_bytes = exchange.lease.memory.room_bytes - more_bytes
            candidates = seen(outputs, *recipes, limits, boxes_room(free_bytes))
            prototypes = prototypes_in(outputs, recipes[0])
            copied = None if prototypes is None else prototypes.copy()
            return Kept((candidates, copied), boxes_bytes(candidates) + more_bytes)

        candidates, prototypes = await model.compute(picture, keep)
        # On a thread: comparing thousands of boxes with each other would hold up the event loop.
        drawn_size = size if preview is None else preview.size_of(size)
        boxes = await asked.service.aside.do(
            boxes_among, candidates, *recipes, drawn_size, limits, prototypes
        )
        if preview is not None:
            from models.drawing import draw_boxes  # fonts are for those who preview

            best = boxes.part(0, min(len(boxes), _DRAWN_BOXES))
            return await drawn_answer(asked, preview, lambda image: draw_boxes(image, best))
        found = FoundObjects(boxes, size, model.pack.version, model.delay_ms)
        return await in_pieces(exchange.client, lambda: written(found))


def _recipes(manifest: Manifest) -> tuple[Detection, Preprocess]:
    detection, preprocess = manifest.detection, manifest.preprocess
    assert detection is not None
    assert preprocess is not None
    return detection, preprocess


def box_pieces(
    head: dict[str, Any],
    field: str,
    boxes: Boxes,
    written: Callable[[Box], dict[str, Any]],
    tail: dict[str, Any],
) -> Iterator[bytes]:
    """Yield one JSON object: the fields of ``head``, boxes as they are ``written``, those of ``tail``."""
    text = _json(head)[:-1] + f',"{field}":['
    length = _BOX_NUMBERS + boxes.points[:1].size + (_MASK_NUMBERS if boxes.masks else 0)
    count = max(1, _NUMBERS_A_PIECE // length)
    comma = ""
    for first in range(0, len(boxes), count):
        if first:
            yield text.encode()
            text = ""
        some = boxes.part(first, first + count)
        if some:
            text += comma + ",".join(_json(written(box)) for box in some)
            comma = ","
    yield (text + "]," + _json(tail)[1:]).encode()


def _json(fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# Segmentation of an image: photograph in, a mask out, which class each of its pixels is.

_SMALL_PIXELS = 1 << 16


class SegmentQuery(BaseModel):
    """``format``: None: png where it is what is accepted. ``size``: of the photograph, or the network's.

    ``draw``: the classes are drawn on the image, PNG.
    """

    format: Literal["json", "png"] | None = None
    size: Literal["photograph", "network"] = "photograph"
    draw: bool = False


@serves(
    ROUTER,
    "POST",
    *of_model(":segment"),
    response_model=schemas.Segmented,
    responses={**also(PNG_FILE), **errors(*INFERENCE)},
    openapi_extra=takes(PICTURE),
)
async def segment(
    asked: CurrentRequest,
    name: str,
    query: Annotated[SegmentQuery, Query()],
    version: str | None = None,
) -> Answer:
    """Say which class each pixel of the image is: runs, or a PNG.

    A PNG is sent where `format` or the header `Accept` says so; its pixels are classes, 255 for none.
    """
    client, preview = asked.client, preview_of(asked, query.draw)
    async with Inference(asked.service, asked.exchange, name, version) as model:
        with model.reading():
            picture, size = await read_picture(asked, model, "segment", preview=preview)
        recipe = model.manifest.segmentation
        assert recipe is not None

        def keep(outputs: Arrays) -> Kept[Bytes]:
            classes = classes_of(recipe, outputs[recipe.output])
            if classes is None:
                raise InvalidRequestError(
                    f"output {recipe.output!r} has NaN; infer gives it as binary data"
                )
            more_bytes = PACKER_BYTES if preview is None else preview.n_bytes(size)
            return Kept(classes, classes.nbytes + more_bytes)

        classes = await model.compute(picture, keep)
        if preview is not None:
            from models.drawing import draw_mask

            drawn = _mask(model.manifest, classes, size, preview.size_of(size), "photograph")
            return await drawn_answer(asked, preview, lambda image: draw_mask(image, drawn))
        mask = _mask(model.manifest, classes, size, size, query.size)
        as_png = query.format == "png" or (
            query.format is None and PNG in (asked.header("accept") or "")
        )
        if as_png:
            return await in_pieces(client, lambda: _few(mask, png(mask)), media=PNG)
        head = {
            "model_name": name,
            "model_version": model.pack.version,
            "image": {"width": size[0], "height": size[1]},
        }
        tail = {"delay_ms": model.delay_ms}
        return await in_pieces(client, lambda: _few(mask, _mask_pieces(head, mask, tail)))


def _mask(manifest: Manifest, classes: Bytes, size: Size, drawn_size: Size, extent: str) -> Mask:
    """Return the mask of a photograph of ``size`` over it as ``drawn_size``, or as the network sees it."""
    recipe, preprocess = manifest.segmentation, manifest.preprocess
    assert recipe is not None
    assert preprocess is not None
    if extent == "network":
        return Mask.of_network(recipe, classes)
    placement = preprocess.placement(size, whole=True)
    return Mask.of_photograph(recipe, classes, placement, drawn_size)


def _few(mask: Mask, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield ``pieces``; those of a small mask as one, since they take only a few milliseconds."""
    if mask.size[0] * mask.size[1] > _SMALL_PIXELS:
        yield from pieces
    else:
        yield b"".join(pieces)


def _mask_pieces(head: dict[str, Any], mask: Mask, tail: dict[str, Any]) -> Iterator[bytes]:
    """Yield one JSON object: the fields of ``head``, the mask, its classes, the fields of ``tail``."""
    width, height = mask.size
    counted = Counted(mask)
    text = f'{_json(head)[:-1]},"mask":{{"width":{width},"height":{height},"runs":['
    comma = ""
    for some in runs(mask, counted):
        if not some:  # an empty piece lets other tasks run
            yield b""
            continue
        yield (text + comma + ",".join(map(str, some))).encode()
        text, comma = "", ","
    areas = _json([area.as_dict() for area in counted.areas()])
    yield f'{text}]}},"classes":{areas},{_json(tail)[1:]}'.encode()
