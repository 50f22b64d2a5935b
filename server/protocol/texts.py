"""Texts on their way into a model: their JSON is read, then a thread makes tokens of each.

A request holds the memory of its body, of what JSON becomes, and of tokenising one text before any of
that is taken. A long text is cut to what can fill the model before it is tokenised.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, StrictStr, ValidationError

from models.packs.manifest import Manifest
from models.text.recipe import TextInput, Tokens, text_inputs, work_bytes
from models.text.tokenizer import Tokenizer
from pipeline.budget.request_needs import SHORT_CODEC_BYTES, embedding_bytes, tensor_bytes
from server.codec.framing import check_not_encoded
from server.codec.messages import TEXT, ModelRequest, WantedOutput, first_error, parsed_object
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
# What a value of JSON takes in Python, with its entry in a list: an integer, or a string without its
# characters; a list or object. Characters take up to four bytes each where one is not ASCII.
_VALUE_BYTES, _BRACKET_BYTES, _WIDE = 88, 256, 4
# Of a body while it comes: itself, a string of it, and its text without strings.
_USUAL_COPIES = 3
# Brackets outside of strings that are none of texts: the body, its list, a field or two of others.
_MORE_BRACKETS = 16


class TextRequest(BaseModel):
    """A text for the model."""

    model_config = ConfigDict(extra="forbid")

    text: StrictStr


class LongText(NamedTuple):
    """``head``: as much as is tokenised at most of a text of ``n_bytes``."""

    head: str
    n_bytes: int


async def read_text(request: HttpRequest, model: Inference, later_bytes: int) -> LongText:
    """Return the text of a request, ``{"text": "..."}``, and hold what its tokens take as well.

    ``later_bytes``: what the request takes when it has them.

    Raises:
        InvalidRequestError: the model takes no texts, or the body is none. Otherwise as ``read_object``.
    """
    recipe = recipe_of(model)

    def needed(body: bytes | bytearray, n_bytes: int) -> int:
        return text_bytes(recipe, n_bytes) + max(first_work(recipe, n_bytes), later_bytes)

    with model.reading():
        document = await read_object(request, needed)
    try:
        text = TextRequest.model_validate(document).text
    except ValidationError as exc:
        raise InvalidRequestError(first_error(exc.errors())) from None
    return long_text(recipe, text)


def text_bytes(recipe: TextInput, n_bytes: int) -> int:
    """Return what the head of a text of ``n_bytes`` takes, however wide its characters are."""
    return _WIDE * min(n_bytes, recipe.max_bytes) + _VALUE_BYTES


def first_work(recipe: TextInput, n_bytes: int) -> int:
    """Return what tokenising a text of ``n_bytes`` takes, unless its first bytes are too few tokens."""
    return work_bytes(next(recipe.cuts(n_bytes)))


def long_text(recipe: TextInput, text: str, where: str = TEXT) -> LongText:
    """Return what is tokenised of ``text``, which errors call ``where``.

    Raises:
        InvalidRequestError: there is nothing in it, or half of a character.
    """
    if not text or text.isspace():
        raise InvalidRequestError(f"{where}: empty; give a text")
    try:
        n_bytes = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequestError(f"{where}: not UTF-8: it has half of a character") from None
    return LongText(recipe.cut(text, recipe.max_bytes), n_bytes)


#: What a request holds later, of a body that has come so far, and of the bytes that it will have.
Needed = Callable[[bytes | bytearray, int], int]


async def read_object(request: HttpRequest, needed: Needed) -> dict[str, Any]:
    """Return the JSON object in the body of a request with texts, when it holds the memory for that.

    It also holds what is ``needed`` later: a request that holds some must not wait for more, or others
    would be refused.

    Raises:
        InvalidRequestError: it is none, or has too many values. TooLargeError: it is over a limit, or over
            what one request may hold. EncodedError: it is compressed. DisconnectedError: the client left.
    """
    exchange = request.exchange
    check_not_encoded(request.headers)
    exchange.arm()
    body = bytearray(await exchange.beginning())
    while not exchange.is_read:
        n_bytes = max(len(body), exchange.declared_bytes)
        # Mostly enough: text without escapes, and a string made of it.
        plain_bytes = _USUAL_COPIES * n_bytes + SHORT_CODEC_BYTES
        await hold(exchange, max(plain_bytes, needed(body, n_bytes)))
        body += await exchange.part()
    await hold(exchange, max(len(body) + parsed_bytes(body), needed(body, len(body))))
    return parsed_object(body)


def parsed_bytes(body: bytes | bytearray) -> int:
    """Return what the JSON ``body`` takes as objects of Python, at most.

    Raises:
        InvalidRequestError: it has more lists than a request may.
    """
    others, n_strings = STRING.subn(b"", body)
    brackets = others.count(b"[") + others.count(b"{")
    if brackets > MAX_TEXTS + _MORE_BRACKETS:
        raise InvalidRequestError(
            f"the body has {brackets:,} lists and objects; texts are {MAX_TEXTS:,}"
        )
    is_narrow = body.isascii() and b"\\u" not in body
    strings = (len(body) - len(others)) * (1 if is_narrow else _WIDE)
    values = n_strings + others.count(b",") + brackets + 1
    return len(others) + strings + _VALUE_BYTES * values + _BRACKET_BYTES * brackets


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


async def tokenised(
    model: Inference,
    text: LongText,
    timeout_seconds: float | None,
    where: str = TEXT,
    other_bytes: int = 0,
) -> Tokens:
    """Return the tokens of ``text``, when its model is loaded; the request then holds what it held.

    ``timeout_seconds``: of the request; None: as the model has it. ``where``: how errors call the text.
    ``other_bytes``: what of the memory that it holds is not for tokenising.

    Raises:
        InvalidRequestError: it is no text, or too long for its tokens to be known. TooLargeError:
            tokenising takes more than a request may hold. Otherwise as Inference.acquire.
    """
    recipe, exchange = recipe_of(model), model.exchange
    worker = await model.acquire(timeout_seconds)
    tokenizer = worker.tokenizer
    if tokenizer is None:  # the model was unloaded between texts of a request
        raise worker.line.leaving()
    reserved_bytes = exchange.lease.held_bytes
    tokens, cut_bytes = Tokens((), ()), 0
    with exchange.within(model.left(timeout_seconds), limit_seconds=model.limit_seconds):
        for cut_bytes in recipe.cuts(text.n_bytes):
            await hold(exchange, other_bytes + work_bytes(cut_bytes))
            prepared = recipe.prepared(recipe.cut(text.head, cut_bytes))
            try:
                tokens = await model.service.aside.do(_encoded, model.service, tokenizer, prepared)
            except ValueError as exc:
                raise InvalidRequestError(f"{where}: {exc}") from None
            if tokens.is_cut or cut_bytes == text.n_bytes:
                break
        else:
            raise InvalidRequestError(
                f"{where}: {text.n_bytes:,} bytes, of which {cut_bytes:,} are {len(tokens.ids)} tokens; "
                f"the model takes {recipe.max_tokens}, and no more bytes are read for them"
            )
        await exchange.hold(reserved_bytes)
    if not tokens.ids:
        raise InvalidRequestError(f"{where}: the tokenizer makes no token of it")
    if max(tokens.ids) >= recipe.vocabulary:
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


async def hold(exchange: Exchange, n_bytes: int) -> None:
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
    inputs = {port.name: port for port in shape_of(model, tokens).required_inputs}
    arrays = text_inputs(recipe_of(model), inputs, tokens)
    return ModelRequest(arrays, outputs, timeout_seconds=timeout_seconds)


def shape_of(model: Inference, tokens: Tokens) -> Manifest:
    """Return the smallest shape of ``model`` that has room for ``tokens``."""
    shapes = model.use.signature.shapes
    return model.manifest if shapes is None else shapes.of_tokens(len(tokens.ids))


def vector_bytes(manifest: Manifest) -> int:
    """Return what one text takes from its tokens to its vector."""
    return tensor_bytes(manifest.inputs) + embedding_bytes(manifest)


async def text_question(request: HttpRequest, model: Inference) -> ModelRequest:
    """Return the text of a request as inputs of ``model``; a header of the answer says where it is cut.

    Raises:
        As ``read_text`` and ``tokenised``.
    """
    text = await read_text(request, model, model.use.infer_bytes)
    tokens = await tokenised(model, text, None)
    if tokens.is_cut:
        request.client.more_headers.append(cut_header(tokens))
    return token_request(model, tokens)


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
    where, (text,) = f"input {TEXT!r}", request.inputs[TEXT].flat
    head = long_text(recipe_of(model), text, where)
    other_bytes = model.exchange.lease.held_bytes
    tokens = await tokenised(model, head, request.timeout_seconds, where, other_bytes)
    inputs = token_request(model, tokens).inputs
    seconds = request.decoding_seconds + time.perf_counter() - started
    return request._replace(inputs=inputs, decoding_seconds=seconds), tokens


def cut_header(tokens: Tokens) -> tuple[bytes, bytes]:
    """Return the header that says of how many tokens the model saw the text."""
    return CUT, b"%d" % len(tokens.ids)


def text_fields(tokens: Tokens) -> Mapping[str, Any]:
    """Return what an answer says of its text."""
    return {"tokens": len(tokens.ids), "truncated": tokens.is_cut}
