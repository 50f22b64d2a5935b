"""What classify and detect share: a photograph comes in, a tensor goes to the model."""

import asyncio
import time
from dataclasses import dataclass
from functools import partial

from models.images.placement import Size
from models.images.preprocess import Preprocess
from models.images.rows import PictureTensor
from pipeline.execution.given import Tensor
from server.codec.framing import check_not_encoded
from server.context import Context
from server.errors import InvalidRequestError
from server.memory.body_share import BodyPart
from server.memory.request_needs import photograph_bytes, picture_sweep_bytes
from server.protocol.routing import Asked
from server.protocol.serving import Inference
from server.requests.pictures import OpenedPicture, Photograph, PictureLimits
from server.requests.sent_picture import sent_picture
from server.requests.uninterrupted import to_its_end


@dataclass(frozen=True)
class Picture:
    """The inputs of the model, and (width, height) of the upright photograph that they show."""

    inputs: dict[str, Tensor]
    size: Size
    timeout_seconds: float | None = None
    decoding_seconds: float = 0.0
    priority: int = 0

    def release(self) -> None:
        """Let go of the inputs."""
        self.inputs.clear()


async def read_picture(asked: Asked, model: Inference, fault: str | None) -> Picture:
    """Return what the image that is sent is to ``model``.

    ``fault`` says why the endpoint has no answer for this model; None: it has.

    Raises:
        InvalidRequestError: there is a ``fault``, or the body is not a picture.
        TooLargeError: there is less memory for requests than it takes to decode.
        EncodedError: the body is compressed; pictures are by themselves.
        DisconnectedError: the client went away while sending.
    """
    context, exchange, manifest = asked.context, asked.exchange, model.manifest
    check_not_encoded(asked.headers)
    with exchange.in_line(BodyPart(context.exchanges.bodies, exchange.lease.client)):
        file = await sent_picture(exchange, asked.header("content-type") or "")
        started = time.perf_counter()
        recipe = manifest.preprocess
        if fault is not None or recipe is None:
            raise InvalidRequestError(fault or f"model {model.name!r} does not take images")
        # The pixels of several photographs at once would make each other wait half done.
        async with exchange.turn(context.decoding):
            limits = PictureLimits(
                *(context.settings.max_image_pixels, exchange.room_bytes),
                partial(photograph_bytes, manifest, recipe, exchange.lease.held_bytes),
            )
            # To their ends, or what they take would be counted as free while they take it.
            opened = await to_its_end(asyncio.to_thread(OpenedPicture, file, limits))
            # All at once: who waits for more while it holds something may wait for its like.
            await exchange.hold(opened.needed_bytes)
            making = asyncio.to_thread(_made, context, recipe, opened)
            tensor, size = await to_its_end(making)
        seconds = time.perf_counter() - started
        context.metrics.preprocess(model.name, seconds)
    await exchange.hold(picture_sweep_bytes(manifest, tensor.n_bytes))
    return Picture({manifest.inputs[0].name: tensor}, size, decoding_seconds=seconds)


def _made(
    context: Context, recipe: Preprocess, opened: OpenedPicture
) -> tuple[PictureTensor, Size]:
    """Return what the picture is to a network, and its size; blocks; raises as decode."""
    try:
        return _tensor(recipe, opened.decode())
    finally:
        context.trimming.look()  # the pixels are gone by now


def _tensor(recipe: Preprocess, photograph: Photograph) -> tuple[PictureTensor, Size]:
    return recipe.tensor(photograph.image), photograph.size
