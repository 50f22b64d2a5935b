"""What classify and detect share: a photograph comes in, a tensor goes to the model."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from numpy.typing import NDArray

from models.pack import Pack
from models.placement import Size
from server.context import Context
from server.errors import InvalidRequestError
from server.images import decode, uploaded


@dataclass(frozen=True)
class Picture:
    """The inputs of the model, and (width, height) of the upright photograph that they show."""

    inputs: Mapping[str, NDArray[Any]]
    size: Size


async def read_picture(
    context: Context, request: Request, name: str, pack: Pack, fault: str | None
) -> Picture:
    """Return what the image of ``request`` is to ``pack``, served as ``name``.

    ``fault`` says why the endpoint has no answer for this model; None: it has.

    Raises:
        InvalidRequestError: there is a ``fault``, or the body is not a picture.
        DisconnectedError: the client went away while sending.
    """
    async with uploaded(request) as path:
        started = time.perf_counter()
        recipe = pack.manifest.preprocess
        if fault is not None or recipe is None:
            raise InvalidRequestError(fault or f"model {name!r} does not take images")
        # A large photograph decodes to a hundred megabytes: one request at a time may have them.
        async with context.parsing:
            photograph = await asyncio.to_thread(decode, path, context.settings.max_image_pixels)
            tensor = await asyncio.to_thread(recipe.apply, photograph.image)
        context.metrics.preprocess(name, time.perf_counter() - started)
        return Picture({pack.manifest.inputs[0].name: tensor}, photograph.size)
