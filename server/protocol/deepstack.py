"""The API of DeepStack and CodeProject.AI, for programs of cameras (Frigate, Home Assistant).

A form has the picture, the least confidence and a key; boxes are found as by ``:detect``. The setting
``deepstack`` turns these routes on.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ValidationError

from models.detection.boxes import Box, BoxLimits
from server.codec.framing import check_not_encoded
from server.codec.messages import first_error
from server.errors import InvalidRequestError, NotFoundError, NotServingError, few
from server.protocol import schemas
from server.protocol.answers import Answer
from server.protocol.documentation import CAMERA_PICTURE, INFERENCE, errors, takes
from server.protocol.http_request import HttpRequest, Rules
from server.protocol.pictures import SentPicture, begin_picture
from server.protocol.recognition import (
    BoxesQuery,
    FoundObjects,
    Fraction,
    box_pieces,
    find_objects,
)
from server.protocol.routing import CurrentRequest, route_class, serves
from server.requests.exchange import headers_named

ROUTER = APIRouter(
    tags=["cameras"],
    route_class=route_class(
        Rules(
            admitted="form",
            error=schemas.CameraError,
            document=lambda fault: {"success": False, **fault.document},
        )
    ),
)
_FIELDS = ("api_key", "min_confidence")


class _Form(BaseModel):
    """The field of a form that limits the boxes; None: the model's own limit holds."""

    min_confidence: Fraction = None


@serves(
    ROUTER,
    "POST",
    "/v1/vision/detection",
    response_model=schemas.CameraPredictions,
    responses=errors(*INFERENCE, model=schemas.CameraError),
    openapi_extra=takes(CAMERA_PICTURE),
)
async def detection(asked: CurrentRequest, query: Annotated[BoxesQuery, Query()]) -> Answer:
    """Find the objects in the image of a form, as DeepStack does: the model that the settings name.

    Fields of the form: ``image``, ``min_confidence`` (0 to 1), ``api_key`` (before the image).
    """
    sent = await _authorised_picture(asked)
    name = asked.service.settings.deepstack_model or await _only_detector(asked)
    return await _predicted(asked, name, query, sent)


@serves(
    ROUTER,
    "POST",
    "/v1/vision/custom/{name}",
    response_model=schemas.CameraPredictions,
    responses=errors(*INFERENCE, model=schemas.CameraError),
    openapi_extra=takes(CAMERA_PICTURE),
)
async def custom(asked: CurrentRequest, name: str, query: Annotated[BoxesQuery, Query()]) -> Answer:
    """Find the objects in the image of a form, as DeepStack does: the model that the path names.

    Fields of the form: ``image``, ``min_confidence`` (0 to 1), ``api_key`` (before the image).
    """
    return await _predicted(asked, name, query, await _authorised_picture(asked))


async def _authorised_picture(asked: HttpRequest) -> SentPicture:
    """Return the beginning of the picture, once a key was presented where keys are asked for.

    Without a key no more is read than the few bytes that a request may send before it holds memory.

    Raises:
        UnknownKeyError: no valid key was presented, neither in a header nor in the form. TooLargeError: the
            body is longer than it may be.
    """
    service = asked.service
    check_not_encoded(asked.headers)
    with asked.exchange.within(service.settings.request_timeout):
        sent = await begin_picture(asked, _FIELDS)
    if service.access.wants_keys:
        authorization = headers_named(b"authorization", asked.headers)
        asked.key = service.access.key(authorization, sent.fields.get("api_key", ""))
    asked.exchange.check_length()
    return sent


async def _only_detector(asked: HttpRequest) -> str:
    """Return the name of the one model that detects objects.

    Raises:
        NotServingError: no model that answers detects objects. NotFoundError: several do.
    """
    repository = asked.service.repository
    names = {entry.model for entry in repository.entries() if entry.answers}
    packs = [(name, (await repository.described(name))[1]) for name in sorted(names)]
    detectors = [name for name, pack in packs if pack.manifest.detection is not None]
    if not detectors:
        raise NotServingError("no model that answers detects objects")
    if len(detectors) > 1:
        raise NotFoundError(
            f"{few(detectors)} detect objects: ask /v1/vision/custom/NAME, or name one in the setting "
            "deepstack_model"
        )
    return detectors[0]


async def _predicted(asked: HttpRequest, name: str, query: BoxesQuery, sent: SentPicture) -> Answer:
    def wanted() -> BoxLimits:
        limits, least = query.limits(), _least_confidence(sent)
        return limits if least is None else replace(limits, score=least)

    def written(objects: FoundObjects) -> Iterator[bytes]:
        tail = {"duration": objects.delay_ms / 1e3}
        return box_pieces({"success": True}, "predictions", objects.boxes, _prediction, tail)

    return await find_objects(asked, name, wanted, written, begun=sent)


def _least_confidence(sent: SentPicture) -> float | None:
    """Return the least confidence that the form asks for; None: it has none.

    Raises:
        InvalidRequestError: it is no number from 0 to 1.
    """
    try:
        return _Form.model_validate(sent.fields).min_confidence
    except ValidationError as exc:
        raise InvalidRequestError(first_error(exc.errors())) from None


def _prediction(box: Box) -> dict[str, Any]:
    """Return ``box`` in whole pixels, with which these clients draw."""
    edges = zip(("x_min", "y_min", "x_max", "y_max"), map(round, box.edges), strict=True)
    return {"label": box.label, "confidence": box.score, **dict(edges)}
