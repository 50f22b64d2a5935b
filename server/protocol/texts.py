"""Texts on their way into a model: their JSON is read, then a thread makes tokens of each.

A request holds the memory of its body, of what JSON becomes, and of tokenising one text before any of
that is taken. A long text is cut to what can fill the model before it is tokenised.
"""

import time
from collections.abc import Mapping
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, StrictStr, ValidationError

from models.text.recipe import TextInput, Tokens, text_inputs, work_bytes
from models.text.tokenizer import Tokenizer
from pipeline.budget.request_needs import SHORT_CODEC_BYTES, embedding_bytes, tensor_bytes
from server.codec.framing import check_not_encoded
from server.codec.messages import TEXT, ModelRequest, WantedOutput, first_error
from server.codec.text.values import STRING
from server.errors import InvalidRequestError
from server.protocol.http_request import HttpRequest
from server.protocol.serving import Inference
from server.requests.exchange import Exchange
from server.service import Service

#: The header of an answer to a text of which the model saw a part: how many tokens that is.
CUT = b"x-text-truncated"
#: Texts of one request at most, as OpenAI has it.
MAX_TEXTS = 2048
# What a value of JSON takes in Python, beside the text of a string: an integer and its place in a list;
# a list or object. A character of a text that is not ASCII takes up to four bytes.
_NUMBER_BYTES, _BRACKET_BYTES, _WIDE = 48, 256, 4
# Brackets outside of strings that are none of texts: the body, its list, a field or two of others.
_MORE_BRACKETS = 16


class TextRequest(BaseModel):
    """A text for the model."""

    model_config = ConfigDict(extra="forbid")

    text: StrictStr


async def read_text(request: HttpRequest, model: Inference) -> str:
    """Return the text of a request, ``{"text": "..."}``.

    Raises:
        InvalidRequestError: the model takes no texts, or the body is none. Otherwise as ``read_object``.
    """
    recipe_of(model)
    with model.reading():
        document = await read_object(request)
    try:
        return TextRequest.model_validate(document).text
    except ValidationError as exc:
        raise InvalidRequestError(first_error(exc.errors())) from None


async def read_object(request: HttpRequest) -> dict[str, Any]:
    """Return the JSON object in the body of a request with texts, when it holds the memory for that.

    Raises:
        InvalidRequestError: it is none, or has too many values. TooLargeError: it is over a limit, or over
            what one request may hold. EncodedError: it is compressed. DisconnectedError: the client left.
    """
    exchange = request.exchange
    check_not_encoded(request.headers)
    exchange.arm()
    body = bytearray(await exchange.beginning())
    while not exchange.is_read:
        await exchange.hold(2 * max(len(body), exchange.declared_bytes) + SHORT_CODEC_BYTES)
        body += await exchange.part()
    await exchange.hold(len(body) + parsed_bytes(body))
    return parsed_object(body)


def parsed_object(body: bytes | bytearray) -> dict[str, Any]:
    """Return the JSON object that ``body`` is.

    Raises:
        InvalidRequestError: it is none.
    """
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequestError(f"the body is not JSON: {exc.msg}") from None
    if not isinstance(document, dict):
        raise InvalidRequestError("the body is not a JSON object")
    return document


def parsed_bytes(body: bytes | bytearray) -> int:
    """Return what the JSON ``body`` takes as objects of Python, at most.

    Raises:
        InvalidRequestError: it has more lists than a request may.
    """
    others = STRING.sub(b"", body)
    brackets = others.count(b"[") + others.count(b"{")
    if brackets > MAX_TEXTS + _MORE_BRACKETS:
        raise InvalidRequestError(
            f"the body has {brackets:,} lists and objects; texts are {MAX_TEXTS:,}"
        )
    is_narrow = body.isascii() and b"\\u" not in body
    strings = (len(body) - len(others)) * (1 if is_narrow else _WIDE)
    values = others.count(b",") + brackets + 1
    return len(others) + strings + _NUMBER_BYTES * values + _BRACKET_BYTES * brackets


def recipe_of(model: Inference) -> TextInput:
    """Return how ``model`` takes texts.

    Raises:
        InvalidRequestError: it takes none.
    """
    text = model.manifest.text
    if text is None:
        raise InvalidRequestError(
            f"model {model.name!r} takes no texts: it was compiled without tokenizer.json"
        )
    return text


def check_text(text: str, where: str = TEXT) -> None:
    """Check that ``text``, which errors call ``where``, has something in it.

    Raises:
        InvalidRequestError: it has nothing.
    """
    if not text.strip():
        raise InvalidRequestError(f"{where}: empty; give a text")


async def tokenised(
    model: Inference,
    text: str,
    timeout_seconds: float | None,
    where: str = TEXT,
    reserved_work: int = 0,
    later_bytes: int = 0,
) -> Tokens:
    """Return the tokens of ``text``, when its model is loaded; the request then holds what it held.

    ``timeout_seconds``: of the request; None: as the model has it. ``where``: how errors call the text.
    ``reserved_work``: how many bytes for tokenising it holds already. ``later_bytes``: that it holds then,
    where it held less.

    Raises:
        InvalidRequestError: it is empty, no text, or too long for its tokens to be known. TooLargeError:
            tokenising takes more than a request may hold. Otherwise as Inference.acquire.
    """
    recipe, exchange = recipe_of(model), model.exchange
    check_text(text, where)
    try:
        n_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{where}: not UTF-8: it has half of a character") from None
    worker = await model.acquire(timeout_seconds)
    tokenizer = worker.tokenizer
    assert tokenizer is not None
    reserved_bytes = exchange.lease.held_bytes
    tokens = Tokens((), ())
    with exchange.within(model.left(timeout_seconds), limit_seconds=model.limit_seconds):
        for cut_bytes in recipe.cuts(n_bytes):
            more_bytes = max(work_bytes(cut_bytes) - reserved_work, 0)
            await _hold(exchange, reserved_bytes + more_bytes)
            prepared = recipe.prepared(recipe.cut(text, cut_bytes))
            try:
                tokens = await model.service.aside.do(_encoded, model.service, tokenizer, prepared)
            except ValueError as exc:
                raise InvalidRequestError(f"{where}: {exc}") from None
            if tokens.is_cut or cut_bytes == n_bytes:
                break
        else:
            raise InvalidRequestError(
                f"{where}: {n_bytes:,} bytes, of which {cut_bytes:,} are {len(tokens.ids)} tokens; the "
                f"model takes {recipe.max_tokens}, and no more bytes are read for them"
            )
        await exchange.hold(max(reserved_bytes, later_bytes))
    if max(tokens.ids, default=0) >= recipe.vocabulary:
        raise InvalidRequestError(
            f"{where}: the tokenizer made a token that the model does not have"
        )
    model.service.metrics.requests.text(model.name, len(tokens.ids), tokens.is_cut)
    return tokens


def _encoded(service: Service, tokenizer: Tokenizer, text: str) -> Tokens:
    """Return the tokens of ``text``; blocks, raises as Tokenizer.encode."""
    try:
        return tokenizer.encode(text)
    finally:
        service.trimming.look()  # here, since its work has just been freed


async def _hold(exchange: Exchange, n_bytes: int) -> None:
    """Hold ``n_bytes``, unless it holds more."""
    if n_bytes > exchange.lease.held_bytes:
        await exchange.hold(n_bytes)


def token_request(
    model: Inference,
    tokens: Tokens,
    outputs: tuple[WantedOutput, ...] = (),
    timeout_seconds: float | None = None,
) -> ModelRequest:
    """Return the request that the ``tokens`` of a text are to ``model``."""
    inputs = {port.name: port for port in model.manifest.required_inputs}
    arrays = text_inputs(recipe_of(model), inputs, tokens)
    return ModelRequest(arrays, outputs, timeout_seconds=timeout_seconds)


def vector_bytes(model: Inference) -> int:
    """Return what one text takes from its tokens to its vector."""
    return tensor_bytes(model.manifest.inputs) + embedding_bytes(model.manifest)


async def with_tokens(
    model: Inference, request: ModelRequest
) -> tuple[ModelRequest, Tokens | None]:
    """Return ``request`` with tokens in place of a text, and these; None: it has no text.

    Raises:
        As ``tokenised``.
    """
    if TEXT not in request.inputs or model.manifest.text is None:
        return request, None
    started = time.perf_counter()
    (text,) = request.inputs[TEXT].flat
    tokens = await tokenised(model, text, request.timeout_seconds, f"input {TEXT!r}")
    inputs = token_request(model, tokens).inputs
    seconds = request.decoding_seconds + time.perf_counter() - started
    return request._replace(inputs=inputs, decoding_seconds=seconds), tokens


def cut_header(tokens: Tokens) -> tuple[bytes, bytes]:
    """Return the header that says of how many tokens the model saw the text."""
    return CUT, b"%d" % len(tokens.ids)


def text_fields(tokens: Tokens) -> Mapping[str, Any]:
    """Return what an answer says of its text."""
    return {"tokens": len(tokens.ids), "truncated": tokens.is_cut}
