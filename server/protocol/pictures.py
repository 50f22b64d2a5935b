"""What all that take a photograph share: it comes in, a tensor goes to the model."""

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, TypeVarTuple

from models.images.placement import Size
from models.images.preprocess import Preprocess
from models.images.rows import PictureTensor
from models.packs.manifest import Verb
from pipeline.execution.given import Tensor
from server.codec.framing import check_not_encoded
from server.context import Context
from server.errors import InvalidRequestError
from server.memory.request_needs import photograph_bytes, picture_sweep_bytes
from server.protocol.routing import Asked
from server.protocol.serving import Inference
from server.requests.pictures import OpenedPicture, Photograph, PictureLimits
from server.requests.sent_picture import SentPicture
from server.requests.uninterrupted import to_its_end

P = TypeVarTuple("P")
T = TypeVar("T")


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


async def begin_picture(asked: Asked, wanted: Collection[str] = ()) -> SentPicture:
    """Return what comes of the picture before its reader holds anything; ``wanted``: as of SentPicture.

    Raises:
        As ``read_picture``.
    """
    sent = SentPicture(asked.header("content-type") or "", wanted)
    sent.add(await asked.exchange.beginning())
    return sent


async def read_picture(
    asked: Asked,
    model: Inference,
    verb: Verb,
    fault: str | None = None,
    begun: SentPicture | None = None,
) -> Picture:
    """Return what the image that is sent is to ``model``.

    It holds what it will take, body, pixels and tensor, before more has come of it than anybody may send.

    ``verb``: what will be made of it. ``fault`` says why there is no such answer of this model; None: there
    is. ``begun``: what has come of it already.

    Raises:
        InvalidRequestError: there is a ``fault``, or the body is not a picture.
        TooLargeError: there is less memory for requests than it takes to decode.
        EncodedError: the body is compressed; pictures are by themselves.
        DisconnectedError: the client went away while sending.
    """
    context, exchange, manifest = asked.context, asked.exchange, model.manifest
    check_not_encoded(asked.headers)
    recipe = manifest.preprocess
    if fault is not None or recipe is None:
        raise InvalidRequestError(
            fault
            or f"model {model.name!r} does not take images: it was compiled without --preprocess"
        )
    exchange.may_be_hastened = True
    await exchange.patience.arm()  # threads are waited for
    sent = begun or await begin_picture(asked)
    opened = await _received(asked, sent, partial(photograph_bytes, manifest, recipe, verb))
    await exchange.hold(opened.needed_bytes)
    started = time.perf_counter()
    tensor, size = await _aside(_made, context, recipe, opened)
    seconds = time.perf_counter() - started
    context.metrics.preprocess(model.name, seconds)
    await exchange.hold(picture_sweep_bytes(manifest, verb, tensor.n_bytes))
    return Picture({manifest.inputs[0].name: tensor}, size, decoding_seconds=seconds)


async def _received(
    asked: Asked, sent: SentPicture, needed: Callable[[int, Size, int], int]
) -> OpenedPicture:
    """Return the picture that has come; ``needed``: what one of so many bytes, this size and pixels takes.

    What that is, its header says, mostly in its first bytes, and how long the body is, that of the request.
    As long as either is unknown it holds all that one request may have, and gives back the rest then.
    """
    exchange = asked.exchange
    most = exchange.lease.room_bytes
    opened: OpenedPicture | None = None
    seen = 0

    def limits(n_bytes: int) -> PictureLimits:
        pixels = asked.context.settings.max_image_pixels
        return PictureLimits(pixels, most, partial(needed, n_bytes))

    while not exchange.is_read:
        received, declared = exchange.received_bytes, exchange.declared_bytes
        if opened is None and declared and received >= 2 * seen:
            opened, seen = await _aside(OpenedPicture.begun, sent.file, limits(declared)), received
        need = most if opened is None else opened.needed_bytes
        await exchange.hold(max(need, received, declared))
        sent.add(await exchange.part())
    file = sent.finish()
    if opened is None:
        opened = await _aside(OpenedPicture, file, limits(exchange.received_bytes))
    return opened


async def _aside(work: Callable[[*P], T], *args: *P) -> T:
    """Return what ``work`` does on a thread; to its end, or what it takes would count as free."""
    return await to_its_end(asyncio.get_running_loop().run_in_executor(None, work, *args))


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
