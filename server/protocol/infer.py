"""Inference that gives tensors: the Open Inference Protocol's infer, and the same of a photograph."""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from pydantic import BaseModel

from models.packs.manifest import Manifest
from pipeline.execution.given import Arrays
from server.codec import (
    Body,
    BodyDecoder,
    Coding,
    Framing,
    ModelAnswer,
    ModelRequest,
    Output,
    WantedOutput,
    answer_coding,
    decode_at_once,
)
from server.codec.classes import best_classes
from server.codec.compression import opener
from server.codec.messages import all_wanted
from server.memory.request_needs import INFLATE_BYTES, LOOSE_BYTES, with_long_text
from server.protocol.answers import Pieces
from server.protocol.pictures import read_picture
from server.protocol.routing import Asked
from server.protocol.serving import Inference, Kept, array_bytes
from server.requests.exchange import FREE_BYTES, Exchange

#: Raises where a request with this timeout in seconds (None: of its own it has none) is refused.
Check = Callable[[float | None], None]


async def infer(asked: Asked, name: str, version: str | None = None) -> Pieces:
    """Run the model on the tensors of the body."""
    exchange, headers = asked.exchange, asked.headers
    coding = answer_coding(headers)
    async with Inference(asked.context, exchange, name, version) as model:
        async with model.reading(names_timeout=True):
            request = await read_tensors(
                *(exchange, Framing.of(headers), model.manifest, model.use.infer_bytes, model.check)
            )
        keep = partial(kept_outputs, request.wanted, model.manifest, coding)
        outputs = await model.compute(request, keep)
        return _sent(ModelAnswer(name, model.pack.version, request.id, outputs), coding)


async def read_tensors(
    exchange: Exchange, framing: Framing, manifest: Manifest, short_bytes: int, check: Check
) -> ModelRequest:
    """Return the infer request that the body of ``exchange`` is, to the model of ``manifest``.

    What it needs is held from the moment on in which more has come than anybody may send: ``short_bytes``
    where its JSON is short. ``check`` is asked when the JSON of a body has come before its raw tensors:
    these need not come where it refuses.

    Raises:
        InvalidRequestError: it is none. TooLargeError: it is over a limit. DisconnectedError: the client
            went away. Otherwise as Exchange.hold and ``check``.
    """
    ports, outputs = manifest.inputs, manifest.outputs
    part = await exchange.beginning()
    is_here = len(part) <= FREE_BYTES
    await exchange.hold(_needed_bytes(framing, short_bytes, is_here))
    if exchange.is_read:
        request = decode_at_once(part, framing, ports, outputs)
        if request is not None:
            return request
    decoder = BodyDecoder(framing, ports, outputs)
    opened = opener(framing.coding, exchange.body_limit.n_bytes)
    is_checked = False
    while True:
        for number, block in enumerate(opened.blocks(part)):
            if number:  # others have their turn: a small part may open to a thousand times as much
                await asyncio.sleep(0)
            decoder.feed(block)
            if decoder.loose_bytes > LOOSE_BYTES:
                more = _needed_bytes(framing, short_bytes, False) + decoder.loose_bytes
                await exchange.hold(max(more, exchange.lease.held_bytes))
        if exchange.is_read:
            break
        if decoder.begun is not None and not is_checked:
            check(decoder.begun.timeout_seconds)
            is_checked = True
        part = await exchange.part()
    opened.finish()
    return decoder.finish()


def _needed_bytes(framing: Framing, short_bytes: int, is_here: bool) -> int:
    """Return what the request holds while it is read; ``is_here``: its body has come before that.

    Raw tensors need their bytes once; JSON of any length, what its values are on their way. A short body
    that is compressed may open to a long one.
    """
    is_opened = framing.coding != "identity"
    is_short = framing.json_bytes is not None and framing.json_bytes <= FREE_BYTES
    if not is_short and (is_opened or not is_here):
        short_bytes = with_long_text(short_bytes)
    return short_bytes + INFLATE_BYTES if is_opened else short_bytes


class PictureQuery(BaseModel):
    """``binary_data_output``: tensors are raw, as where an infer request asks for that."""

    binary_data_output: bool = False


async def infer_picture(
    asked: Asked, name: str, query: PictureQuery, version: str | None = None
) -> Pieces:
    """Run the model on the image (raw body, or the file of a multipart form): all outputs, as `/infer`."""
    coding = answer_coding(asked.headers)
    async with Inference(asked.context, asked.exchange, name, version) as model:
        async with model.reading():
            picture = await read_picture(asked, model, "infer")
        wanted = all_wanted(model.manifest.outputs, query.binary_data_output)
        keep = partial(kept_outputs, wanted, model.manifest, coding)
        outputs = await model.compute(picture, keep)
        return _sent(ModelAnswer(name, model.pack.version, None, outputs), coding)


def _sent(answer: ModelAnswer, coding: Coding) -> Pieces:
    body = Body(answer)
    return Pieces(body.text, body.raw, body.raw_bytes, body.is_mixed, coding)


def kept_outputs(
    asked: Sequence[WantedOutput], manifest: Manifest, coding: Coding, outputs: Arrays
) -> Kept[list[Output]]:
    """Return what is ``asked`` for of the ``outputs``, in that order, to be sent in ``coding``."""
    kept, n_bytes, is_raw = [], 0, coding == "identity"
    for name, is_binary, n_classes in asked:
        array = outputs[name].copy()  # the next sweep overwrites it
        if n_classes:
            array = best_classes(array, n_classes, _labels(name, manifest))
        kept.append(Output(name, array, is_binary))
        is_raw = is_raw and is_binary
        n_bytes += array_bytes(array)
    return Kept(kept, n_bytes, is_raw)


def _labels(output: str, manifest: Manifest) -> Sequence[str]:
    found = manifest.classification
    return found.labels if found is not None and found.output == output else ()
