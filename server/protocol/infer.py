"""Inference that answers with tensors; deadlines and refusals of such requests before they begin."""

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache, partial
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from models.packs.manifest import Manifest
from pipeline.budget.request_needs import INFLATE_BYTES, LOOSE_BYTES, with_long_text
from pipeline.execution.given import Arrays
from server.codec.compression import BodyOpener
from server.codec.framing import Coding, Framing, answer_coding
from server.codec.infer_bodies import (
    Body,
    BodyDecoder,
    best_classes,
    decode_at_once,
    named_timeout,
    text_that_is_here,
)
from server.codec.messages import (
    InferRequest,
    ModelAnswer,
    ModelRequest,
    Output,
    Signature,
    WantedOutput,
)
from server.errors import BusyError, NotFoundError, NotServingError
from server.faults import Fault
from server.protocol import schemas
from server.protocol.answers import Answer, as_error, in_pieces
from server.protocol.attending import identity
from server.protocol.documentation import (
    BINARY,
    FRAMING,
    INFERENCE,
    PICTURE,
    SOUND,
    also,
    errors,
    json_of,
    takes,
)
from server.protocol.http_request import HttpRequest, path_within
from server.protocol.pictures import read_picture
from server.protocol.routing import (
    CACHED_PATHS,
    CurrentRequest,
    DirectRoute,
    Route,
    of_model,
    serves,
)
from server.protocol.serving import Inference, Kept, array_bytes
from server.protocol.sounds import accepts_sound, sound_question
from server.protocol.texts import (
    TextRequest,
    cut_header,
    text_question,
    with_tokens,
)
from server.repository.entry import Entry
from server.requests.exchange import FREE_BYTES, Exchange
from server.service import Service
from server.transport.http1 import Head
from server.transport.intake import Arrived

#: Raises an error where a request is refused that has this timeout in seconds (None: none of its own), and
#: has to wait for so many bytes of memory before it is read on. Returns how long it may wait for them.
Check = Callable[[float | None, int], float | None]


TENSORS = APIRouter(tags=["inference"], route_class=DirectRoute)
PICTURES = APIRouter(tags=["inference"], route_class=Route)


@serves(
    TENSORS,
    "POST",
    *of_model("/infer"),
    response_model=schemas.InferResponse,
    responses={**also(BINARY), **errors(*INFERENCE)},
    openapi_extra=takes({**json_of(InferRequest), **BINARY}, headers=FRAMING),
)
async def infer(asked: CurrentRequest, name: str, version: str | None = None) -> Answer:
    """Run the model on the tensors of the body."""
    exchange, headers = asked.exchange, asked.headers
    coding = answer_coding(headers)
    async with Inference(asked.service, exchange, name, version) as model:
        with model.reading(names_timeout=True):
            framing, use = Framing.of(headers), model.use
            request = await read_tensors(
                exchange, framing, use.signature, use.infer_bytes, model.check
            )
        request, tokens = await with_tokens(model, request)
        if tokens is not None and tokens.is_cut:
            asked.client.more_headers.append(cut_header(tokens))
        keep = partial(kept_outputs, request.wanted, model.manifest, coding)
        outputs = await model.compute(request, keep)
        answer = ModelAnswer(name, model.pack.version, request.id, outputs)
        return await _sent(exchange, answer, coding)


async def read_tensors(
    exchange: Exchange, framing: Framing, model: Signature, short_bytes: int, check: Check
) -> ModelRequest:
    """Return the infer request that the body of ``exchange`` is, to ``model``.

    The first few bytes of a body are read freely; before more is read, the request holds the memory that it
    needs, ``short_bytes`` where its JSON is short. ``check`` is called when the JSON of a body has come and
    the body has to wait for memory, and with each part of raw tensors that follow: where it raises, it does
    not wait, and no more is read.

    Raises:
        InvalidRequestError: it is none. TooLargeError: it is over a limit. DisconnectedError: the client
            went away. Otherwise as Exchange.hold and ``check``.
    """
    part = await exchange.beginning()
    is_here = exchange.is_read and len(part) <= FREE_BYTES
    needed_bytes = _needed_bytes(framing, short_bytes, is_here)
    if not exchange.lease.hold_at_once(needed_bytes):
        text = text_that_is_here(part, framing, exchange.is_read)
        seconds = None if text is None else check(named_timeout(text), needed_bytes)
        await exchange.hold(needed_bytes, seconds)
    if exchange.is_read:
        request = decode_at_once(part, framing, model)
        if request is not None:
            return request
    decoder = BodyDecoder(framing, model)
    opened = BodyOpener(framing.coding, exchange.body_limit.n_bytes)
    while True:
        for number, block in enumerate(opened.blocks(part)):
            # Other tasks run in between: a small compressed part may open to a thousand times as much.
            if number:
                await asyncio.sleep(0)
            decoder.feed(block)
            if decoder.loose_bytes > LOOSE_BYTES:
                more = _needed_bytes(framing, short_bytes, False) + decoder.loose_bytes
                await exchange.hold(max(more, exchange.lease.held_bytes))
        if exchange.is_read:
            break
        if decoder.begun is not None:
            check(decoder.begun.timeout_seconds, 0)
        part = await exchange.part()
    opened.finish()
    return decoder.finish()


def _needed_bytes(framing: Framing, short_bytes: int, is_here: bool) -> int:
    """Return the memory that a request holds while it is read; ``is_here``: all of its body has come.

    Raw tensors need their bytes once. JSON of any length also needs memory for values on their way into
    arrays. A short body that is compressed may open to a long one.
    """
    is_opened = framing.coding != "identity"
    is_short = framing.json_bytes is not None and framing.json_bytes <= FREE_BYTES
    if not is_short and (is_opened or not is_here):
        short_bytes = with_long_text(short_bytes)
    return short_bytes + INFLATE_BYTES if is_opened else short_bytes


class PictureQuery(BaseModel):
    """``binary_data_output``: tensors are raw, as where an infer request asks for that."""

    binary_data_output: bool = False


@serves(
    PICTURES,
    "POST",
    *of_model(":infer"),
    response_model=schemas.InferResponse,
    responses={**also(BINARY), **errors(*INFERENCE)},
    openapi_extra=takes({**PICTURE, **json_of(TextRequest), **SOUND}),
)
async def infer_picture(
    asked: CurrentRequest,
    name: str,
    query: Annotated[PictureQuery, Query()],
    version: str | None = None,
) -> Answer:
    """Run the model on an image, a text or a sound: all outputs, as `/infer`."""
    coding = answer_coding(asked.headers)
    async with Inference(asked.service, asked.exchange, name, version) as model:
        question = await _question(asked, model)
        wanted = model.use.signature.all_outputs[query.binary_data_output]
        keep = partial(kept_outputs, wanted, model.manifest, coding)
        outputs = await model.compute(question, keep)
        answer = ModelAnswer(name, model.pack.version, None, outputs)
        return await _sent(asked.exchange, answer, coding)


async def _question(request: HttpRequest, model: Inference) -> ModelRequest:
    """Return the image, text or sound of the body as inputs of ``model``; raises as what reads them."""
    if accepts_sound(request, model):
        return (await sound_question(request, model, "infer"))[0]
    if model.manifest.text is None:
        with model.reading():
            picture, _ = await read_picture(request, model, "infer")
        return picture
    return await text_question(request, model)


def _sent(exchange: Exchange, answer: ModelAnswer, coding: Coding) -> Awaitable[Answer]:
    body = Body(answer)
    pieces = body.text, body.raw, body.raw_bytes
    return in_pieces(exchange.client, *pieces, is_mixed=body.is_mixed, coding=coding)


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
    recipe = manifest.classification
    return recipe.labels if recipe is not None and recipe.output == output else ()


# Infer requests before they begin: their deadlines, and which of them are refused unread.

# The search may find a parameter of an output instead, which does not matter: the deadline counts here only
# under overload.
_TIMEOUT = re.compile(rb'"timeout"\s*:\s*(\d{1,15})\D')
_MICROSECONDS = 1_000_000
_INFER = [route for route in TENSORS.routes if isinstance(route, DirectRoute)]


class InferReception:
    """Finds the deadlines of infer requests, and refuses them, without parsing their bodies.

    ``root_path``: the prefix under which the application of ``service`` is mounted.
    """

    def __init__(self, service: Service, root_path: str = "") -> None:
        self._service = service
        self._root_path = root_path

    def deadline(self, request: Arrived, is_free: bool) -> float | None:
        """Return the deadline of an infer request, as far as it is known; None for all other requests.

        Raises:
            BusyError: its model's line would refuse it.
        """
        entry = self._asked(request.head)
        worker = None if entry is None else entry.worker
        if entry is None or worker is None:
            return None
        if is_free and worker.line.idle:
            return math.inf  # nothing keeps it waiting
        limit = self._service.settings.request_timeout
        seconds = _named(request) or entry.timeout_seconds
        deadline = request.arrived_at + min(seconds or limit, limit)
        line, left = worker.line, deadline - time.monotonic()
        try:
            if line.is_contended:
                is_read = request.declared_bytes <= len(request.body)
                worker.check_room(left, is_read=is_read)
        except NotServingError:
            return None  # the handler reports this when it reads the body
        if not (
            line.idle and worker.served.is_quick
        ):  # else the event loop answers it once it begins
            request.expected = worker.expect(left, request.declared_bytes)
        return deadline

    def refusal(self, request: Arrived, why: BusyError) -> Answer:
        """Return the answer to ``request``, which is refused, and count it."""
        entry = self._asked(request.head)
        if entry is not None and entry.worker is not None and request.expected is not None:
            entry.worker.line.came(request.expected)
        fault = Fault.of(why)
        if entry is not None and entry.version is not None:
            outcome, seconds = fault.code.outcome, time.monotonic() - request.arrived_at
            self._service.metrics.requests.end(entry.model, entry.version, outcome, seconds)
        answer = as_error(fault)
        answer.raw_headers.append((b"x-request-id", identity(request.head.headers).encode()))
        return answer

    def _asked(self, head: Head) -> Entry | None:
        """Return the entry of the model that an infer request asks; None: no entry, or no such request."""
        if head.method != "POST":
            return None
        model = _model_of(path_within(head.path, self._root_path))
        if model is None:
            return None
        try:
            return self._service.repository.models.find(*model)
        except NotFoundError:
            return None  # the handler reports this when it reads the body


@lru_cache(CACHED_PATHS)
def _model_of(path: str) -> tuple[str, str | None] | None:
    """Return name and version of the model that an infer request to ``path`` asks; None: it is none."""
    match = next(filter(None, (route.path_regex.match(path) for route in _INFER)), None)
    return None if match is None else (match["name"], match.groupdict().get("version"))


def _named(request: Arrived) -> float | None:
    """Return the timeout in seconds in the body of ``request``, if it is in its first bytes and has come.

    There it is of a short body, and of raw tensors, whose JSON is in front of them.
    """
    match = _TIMEOUT.search(request.body, 0, FREE_BYTES)
    return None if match is None else int(match[1]) / _MICROSECONDS or None
