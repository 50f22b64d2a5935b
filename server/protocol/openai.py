"""OpenAI's endpoint of vectors, for programs that speak its protocol (openai, LangChain, LlamaIndex).

Texts of one request are computed in order, as many at a time as a pass of the model carries, within one
deadline and one reservation of memory.
"""

import asyncio
import base64
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import orjson
from fastapi import APIRouter
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictInt,
    StrictStr,
    ValidationError,
    WithJsonSchema,
)

from models.text.recipe import Tokens
from server.codec.messages import first_error
from server.errors import InvalidRequestError, NotFoundError
from server.faults import Fault
from server.protocol import schemas
from server.protocol.answers import Answer, in_pieces
from server.protocol.documentation import INFERENCE, errors, json_of, takes
from server.protocol.embedding import (
    Vector,
    check_dimensions,
    embedding_of,
    finite,
    question,
    width_of,
)
from server.protocol.http_request import Rules
from server.protocol.routing import CurrentRequest, route_class, serves
from server.protocol.serving import Inference, Kept
from server.protocol.texts import (
    MAX_TEXTS,
    LongText,
    first_work,
    hold,
    long_text,
    read_object,
    recipe_of,
    tokenised,
    vector_bytes,
)
from server.requests.exchange import FREE_BYTES
from server.service import Service


def openai_document(fault: Fault) -> Mapping[str, Any]:
    """Return the fields of an error as OpenAI's clients read them."""
    kind = "invalid_request_error" if fault.code.status < 500 else "server_error"
    return {"error": {"message": fault.message, "type": kind, "param": None, "code": fault.code}}


ROUTER = APIRouter(
    tags=["openai"],
    route_class=route_class(Rules(error=schemas.OpenAiError, document=openai_document)),
)
_FLOAT_BYTES = 4
# An integer of Python, and its place in a list.
_ID_BYTES = 40
# Where a body names its model, if it does so at its beginning.
_MODEL = re.compile(rb'"model"\s*:\s*"([A-Za-z0-9._-]{1,100})"')
# Base64 takes a third more; JSON, where a vector is written when the one before has gone, nothing.
_WRITTEN = {"base64": 3, "float": 1}


class Inputs(NamedTuple):
    """``items``: texts, or token ids of the model's own tokenizer; ``in_list``: they are a list."""

    items: list[str | list[int] | LongText]
    in_list: bool

    def named(self, index: int) -> str:
        """Return how errors call an item."""
        return f"input.{index}" if self.in_list else "input"


def _inputs(value: Any) -> Inputs:
    if isinstance(value, str):
        return Inputs([value], False)
    if not isinstance(value, list) or not value:
        raise ValueError("a text, or a list that is not empty, of texts or of token ids")
    kinds = set(map(type, value))
    if kinds == {int}:
        return Inputs([value], False)
    if len(value) > MAX_TEXTS:
        raise ValueError(f"{len(value):,} inputs; there may be {MAX_TEXTS:,} in one request")
    if kinds != {str} and not (
        kinds == {list} and all(set(map(type, row)) == {int} for row in value)
    ):
        raise ValueError("items are all texts, all token ids, or all lists of token ids")
    return Inputs(value, True)


def _schema() -> dict[str, Any]:
    ids: dict[str, Any] = {"type": "array", "items": {"type": "integer"}}
    texts = [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]
    return {"anyOf": [*texts, ids, {"type": "array", "items": ids}]}


class EmbeddingsRequest(BaseModel):
    """Texts for the model; other fields are ignored."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    model: StrictStr
    input: Annotated[Any, AfterValidator(_inputs), WithJsonSchema(_schema())]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[StrictInt | None, Field(ge=1)] = None


@serves(
    ROUTER,
    "POST",
    "/v1/embeddings",
    response_model=schemas.EmbeddingList,
    responses=errors(*INFERENCE, model=schemas.OpenAiError),
    openapi_extra=takes(json_of(EmbeddingsRequest)),
)
async def embeddings(request: CurrentRequest) -> Answer:
    """Make vectors of texts, or of token ids of the model's tokenizer, as OpenAI's API has it."""
    with request.exchange.within(request.service.settings.request_timeout):
        document = await read_object(request, partial(_needed, request.service))
    try:
        body = EmbeddingsRequest.model_validate(document)
    except ValidationError as exc:
        raise InvalidRequestError(first_error(exc.errors())) from None
    del document
    async with Inference(request.service, request.exchange, body.model, None) as model:
        embedding_of(model)
        check_dimensions(model, body.dimensions)
        answers = await _answers(model, body)
        n_bytes = sum(vector.nbytes for vector, _ in answers)
        await model.hold_answer(Kept(None, _WRITTEN[body.encoding_format] * n_bytes))
        written = _encoded if body.encoding_format == "base64" else _listed
        return await in_pieces(request.client, lambda: _pieces(body.model, answers, written))


def _needed(service: Service, body: bytes | bytearray, n_bytes: int) -> int:
    """Return about what a request takes, of whose body of ``n_bytes`` so much has come.

    It is held before the body is parsed, so that few requests have to wait for more while they hold some.
    """
    match = _MODEL.search(body, 0, FREE_BYTES)
    try:
        entry = service.repository.models.find(match[1].decode()) if match else None
    except NotFoundError:
        entry = None
    pack = None if entry is None else entry.pack
    if pack is None or pack.manifest.text is None or pack.manifest.embedding is None:
        return 0
    manifest, text = pack.manifest, pack.manifest.text
    count = min(body.count(b'"') // 2 + body.count(b"["), MAX_TEXTS)
    vectors = count * _FLOAT_BYTES * width_of(manifest, pack.manifest.embedding)
    heads = min(n_bytes, count * text.max_bytes)
    return heads + vectors + max(first_work(text, n_bytes), vector_bytes(manifest))


_Answers = list[tuple[Vector, Tokens]]


async def _answers(model: Inference, body: EmbeddingsRequest) -> _Answers:
    """Return the vector of each input, and its tokens.

    Raises:
        InvalidRequestError: an input is empty, or too long, or has a token that the model does not have.
    """
    recipe, embedding, inputs = recipe_of(model), embedding_of(model), body.input
    assert isinstance(inputs, Inputs)
    items, n_bytes, longest = inputs.items, 0, 0
    for index, item in enumerate(items):
        if isinstance(item, str):  # of a long text only what is tokenised stays
            items[index] = text = long_text(recipe, item, inputs.named(index))
            n_bytes, longest = n_bytes + sys.getsizeof(text.head), max(longest, text.n_bytes)
        elif not isinstance(item, LongText):
            _check_ids(item, recipe.max_tokens, recipe.vocabulary, inputs.named(index))
            n_bytes += _ID_BYTES * len(item)
    exchange, seconds = model.exchange, model.limit_seconds
    batch_size = (await model.acquire(seconds)).engine.plan.batch_size
    n_bytes += len(items) * _FLOAT_BYTES * width_of(model.manifest, embedding)
    work = max(first_work(recipe, longest), batch_size * vector_bytes(model.manifest))
    with exchange.within(model.left(seconds), limit_seconds=seconds):
        await hold(exchange, n_bytes + work)
    answers: _Answers = []
    model.use.begin_parts()
    for start in range(0, len(items), batch_size):
        stop = min(start + batch_size, len(items))
        group = [await _tokens(model, inputs, index, n_bytes) for index in range(start, stop)]
        questions = [question(model, tokens, body.dimensions, seconds) for tokens in group]
        for tokens, vector in zip(group, await model.compute_all(questions), strict=True):
            answers.append((finite(embedding, vector), tokens._replace(types=())))
        await asyncio.sleep(0)  # short inferences run on this thread
    return answers


async def _tokens(model: Inference, inputs: Inputs, index: int, other_bytes: int) -> Tokens:
    """Return the tokens of an input; ``other_bytes``: as of ``tokenised``."""
    item = inputs.items[index]
    if isinstance(item, LongText):
        seconds, where = model.limit_seconds, inputs.named(index)
        return await tokenised(model, item, seconds, where, other_bytes)
    assert isinstance(item, list)
    model.service.metrics.requests.text(model.name, len(item), False)
    return Tokens(item, [0] * len(item))


def _check_ids(ids: Sequence[int], max_tokens: int, vocabulary: int, where: str) -> None:
    if len(ids) > max_tokens:
        raise InvalidRequestError(f"{where}: {len(ids)} tokens; the model takes {max_tokens}")
    largest = max(ids)
    if min(ids) < 0 or largest >= vocabulary:
        raise InvalidRequestError(
            f"{where}: token {largest if largest >= vocabulary else min(ids)}; this model has "
            f"{vocabulary:,}, and takes texts as well (LangChain: check_embedding_ctx_length=False)"
        )


def _encoded(vector: Vector) -> bytes:
    return b'"%b"' % base64.b64encode(vector.tobytes())


def _listed(vector: Vector) -> bytes:
    return orjson.dumps(vector, option=orjson.OPT_SERIALIZE_NUMPY)


def _pieces(name: str, answers: _Answers, written: Any) -> Iterator[bytes]:
    """Yield one JSON object, an input at a time."""
    text = b'{"object":"list","data":['
    for index, (vector, tokens) in enumerate(answers):
        cut = b',"truncated":true' if tokens.is_cut else b""
        yield text + b'{"object":"embedding","index":%d,"embedding":%b%b}' % (
            index,
            written(vector),
            cut,
        )
        text = b","
    used = sum(len(tokens.ids) for _, tokens in answers)
    usage = {"prompt_tokens": used, "total_tokens": used}
    yield b"]," + orjson.dumps({"model": name, "usage": usage})[1:]
