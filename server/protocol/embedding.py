"""Vectors: a text, a photograph or a sound in, the vector that the model makes of it out."""

import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import APIRouter, Query
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from models.embedding import Embedding
from models.packs.manifest import Manifest
from models.text.recipe import IDS, Tokens, token_mask
from pipeline.execution.given import Arrays
from server.codec.messages import ModelRequest
from server.errors import InvalidRequestError
from server.protocol import schemas
from server.protocol.answers import Answer, answered
from server.protocol.documentation import INFERENCE, PICTURE, SOUND, errors, json_of, takes
from server.protocol.http_request import HttpRequest
from server.protocol.pictures import read_picture
from server.protocol.routing import CurrentRequest, Route, of_model, serves
from server.protocol.serving import Inference, Kept
from server.protocol.sounds import accepts_sound, sound_question
from server.protocol.texts import (
    TextRequest,
    read_text,
    recipe_of,
    text_fields,
    token_request,
    tokenised,
    vector_bytes,
)

ROUTER = APIRouter(tags=["inference"], route_class=Route)
Vector = NDArray[np.float32]


class EmbedQuery(BaseModel):
    """``dimensions``: the first so many numbers, of a vector that is made for that; None: as it is."""

    dimensions: Annotated[int | None, Field(ge=1)] = None


@serves(
    ROUTER,
    "POST",
    *of_model(":embed"),
    response_model=schemas.Embedded,
    responses=errors(*INFERENCE),
    openapi_extra=takes({**json_of(TextRequest), **PICTURE, **SOUND}),
)
async def embed(
    request: CurrentRequest,
    name: str,
    query: Annotated[EmbedQuery, Query()],
    version: str | None = None,
) -> Answer:
    """Make a vector of a text, an image, or a sound."""
    async with Inference(request.service, request.exchange, name, version) as model:
        recipe = embedding_of(model)
        check_dimensions(model, query.dimensions)
        if model.manifest.text is not None:
            vector, fields = await _of_text(request, model, query.dimensions)
        else:
            if accepts_sound(request, model):
                tensors, heard = await sound_question(request, model, "embed")
                fields = heard.fields
            else:
                with model.reading():
                    tensors, size = await read_picture(request, model, "embed")
                fields = {"image": {"width": size[0], "height": size[1]}}

            def keep(outputs: Arrays) -> Kept[Vector]:
                vector = recipe.vector(outputs[recipe.output], None, query.dimensions)
                return Kept(vector, vector.nbytes)

            vector = await model.compute(tensors, keep)
        head = {"model_name": name, "model_version": model.pack.version}
        return answered(
            orjson.dumps(
                {**head, "embedding": finite(recipe, vector), **fields, "delay_ms": model.delay_ms},
                option=orjson.OPT_SERIALIZE_NUMPY,
            )
        )


async def _of_text(
    request: HttpRequest, model: Inference, dimensions: int | None
) -> tuple[Vector, dict[str, Any]]:
    """Return the vector of the text in the body, and what is known of it; raises as ``tokenised``."""
    tokens = await tokenised(
        model, await read_text(request, model, vector_bytes(model.manifest)), None
    )
    answer = await model.compute_part(*question(model, tokens, dimensions, None))
    await model.hold_answer(answer)
    return answer.what, dict(text_fields(tokens))


def question(
    model: Inference, tokens: Tokens, dimensions: int | None, timeout_seconds: float | None
) -> tuple[ModelRequest, Any]:
    """Return the request to ``model`` for the vector of ``tokens``, and what keeps that."""
    recipe = embedding_of(model)
    request = token_request(model, tokens, timeout_seconds=timeout_seconds)
    length = request.inputs[IDS].shape[1]
    mask = token_mask(recipe_of(model), length, len(tokens.ids))

    def keep(outputs: Arrays) -> Kept[Vector]:
        vector = recipe.vector(outputs[recipe.output], mask, dimensions)
        return Kept(vector, vector.nbytes)

    return request, keep


def embedding_of(model: Inference) -> Embedding:
    """Return how ``model`` gives vectors.

    Raises:
        InvalidRequestError: it gives none.
    """
    embedding = model.manifest.embedding
    if embedding is None:
        raise InvalidRequestError(
            f"model {model.name!r} gives no vectors: it was compiled without --embedding, or modules.json "
            "next to its tokenizer"
        )
    return embedding


def width_of(manifest: Manifest, recipe: Embedding) -> int:
    """Return how many numbers a vector of ``recipe`` has, where no request asks for fewer."""
    ports = (port for port in manifest.outputs if port.name == recipe.output)
    return recipe.width(next(ports).shape)


def check_dimensions(model: Inference, dimensions: int | None) -> None:
    """Check that vectors of ``model`` may have so many ``dimensions``; None: as they are.

    Raises:
        InvalidRequestError: they may not.
    """
    recipe = embedding_of(model)
    width = width_of(model.manifest, recipe)
    if dimensions is None or dimensions == width or dimensions in recipe.matryoshka:
        return
    others: Sequence[int] = sorted(recipe.matryoshka)
    also = f", or {', '.join(map(str, others))}" if others else ""
    raise InvalidRequestError(
        f"dimensions: {dimensions}; vectors of model {model.name!r} have {width}{also} (matryoshka of its "
        "recipe)"
    )


def finite(recipe: Embedding, vector: Vector) -> Vector:
    """Return ``vector``.

    Raises:
        InvalidRequestError: JSON has no such numbers.
    """
    if not math.isfinite(float(np.abs(vector).max(initial=0.0))):
        raise InvalidRequestError(
            f"output {recipe.output!r} has NaN or infinite numbers; infer gives them as binary data"
        )
    return vector
