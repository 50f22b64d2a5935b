"""The model repository: its models, load and unload while serving, and models that are sent as files."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ValidationError

from models.sizes import Lengths, parse_shapes
from server.causes import because
from server.codec.framing import check_not_encoded
from server.codec.messages import parsed_object
from server.errors import InvalidRequestError, TooLargeError, shown
from server.faults import FAILURES, reason_of
from server.protocol import schemas
from server.protocol.answers import MEDIA_TYPE, Answer, event, event_stream
from server.protocol.documentation import BINARY, LOADING, OBJECT, errors, json_of, takes
from server.protocol.errors import reported
from server.protocol.http_request import HttpRequest, Rules
from server.protocol.metadata import check_override
from server.protocol.routing import CurrentRequest, Route, route_class, serves
from server.repository.entry import Entry
from server.repository.uploads import PlacedVersion, Upload
from server.requests.exchange import Exchange
from server.service import Service
from server.transport.limits import AHEAD_BYTES

INDEX = APIRouter(tags=["repository"], route_class=Route)
CHANGES = APIRouter(tags=["repository"], route_class=route_class(Rules(admitted="admin")))
UPLOADS = APIRouter(
    tags=["repository"], route_class=route_class(Rules(admitted="admin", body="upload"))
)
_MODEL = "/v2/repository/models/{name}"

# Parameters of requests about models: small JSON objects, often none.

_MOST_BYTES = 64 << 10


async def _read_object(asked: HttpRequest) -> dict[str, Any]:
    """Return the body of the request as a JSON object; an empty body is an empty object.

    Raises:
        InvalidRequestError: it is none. TooLargeError: it is over 64 KiB. DisconnectedError: the client
            went away. DeadlineError: it took too long.
    """
    exchange = asked.exchange
    exchange.check_length()
    with exchange.within(asked.service.settings.request_timeout):
        body = await exchange.beginning()
        while not exchange.is_read and len(body) <= _MOST_BYTES:
            await exchange.hold(_MOST_BYTES)
            body += await exchange.part()
    if len(body) > _MOST_BYTES:
        raise TooLargeError(f"the body is over the limit of {_MOST_BYTES} bytes")
    if not body.strip():
        return {}
    return parsed_object(body)


async def _read_parameters(asked: HttpRequest) -> dict[str, Any]:
    """Return the ``parameters`` in the body of the request; raises as ``_read_object``."""
    parameters = (await _read_object(asked)).get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidRequestError("parameters: not a JSON object")
    return parameters


def _flag(holder: Mapping[str, Any], name: str) -> bool:
    """Return the boolean ``name`` of ``holder``; False where there is none.

    Raises:
        InvalidRequestError: it is no boolean.
    """
    value = holder.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name}: not a boolean")
    return value


# The model repository extension: list models, load and unload them while serving.


@serves(
    INDEX,
    "POST",
    "/v2/repository/index",
    response_model=schemas.Index,
    responses=errors(*OBJECT, 404),
    openapi_extra=takes(json_of(schemas.IndexRequest, {"ready": True}), is_optional=True),
)
async def index(asked: CurrentRequest) -> list[dict[str, Any]]:
    """All models on disk or loaded, their state, and why one does not serve; ``ready``: those that do."""
    return await states(asked.service, _flag(await _read_object(asked), "ready"))


async def states(service: Service, only_ready: bool) -> list[dict[str, Any]]:
    """Return the state of all models on disk or loaded; ``only_ready``: of those that serve."""
    known = [(entry.model, entry) for entry in service.repository.entries()]
    on_disk = await asyncio.to_thread(service.repository.catalog.on_disk)
    unknown = [(name, None) for name in {*on_disk}.difference(name for name, _ in known)]
    return [
        _state(service, name, entry or Entry(name))
        for name, entry in sorted([*known, *unknown], key=_by_name_and_version)
        if not only_ready or (entry and entry.state == "READY")
    ]


def _state(service: Service, name: str, entry: Entry) -> dict[str, Any]:
    generation = service.repository.generation(name)
    return {
        "name": name,
        "version": entry.version,
        "state": entry.state,
        "reason": reason_of(entry.reason, service.settings.repository),
        "code": entry.fault and entry.fault.code,
        "generation": generation.desired,
        "observed_generation": generation.observed,
    }


def _by_name_and_version(named: tuple[str, Entry | None]) -> tuple[str, int]:
    name, entry = named
    version = entry.version if entry else None
    return name, int(version) if version and version.isdecimal() else 0


@serves(
    CHANGES,
    "POST",
    f"{_MODEL}/load",
    response_model=schemas.ModelState,
    responses=errors(*OBJECT, *LOADING),
    openapi_extra=takes(json_of(schemas.LoadRequest, {"parameters": {}}), is_optional=True),
)
async def load(asked: CurrentRequest, name: str) -> dict[str, Any]:
    """Load the latest version; 409 with the figures when it does not fit in the budget.

    A configuration that comes along (``parameters.config``) may not change anything.
    """
    return await load_model(asked.service, name, await _read_parameters(asked))


async def load_model(service: Service, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Load the latest version of model ``name``.

    Raises:
        InvalidRequestError: ``parameters`` would change it. Otherwise as Repository.load.
    """
    for parameter, value in parameters.items():
        if parameter == "config":
            check_override(value, name)
        elif parameter.startswith("file:"):
            raise InvalidRequestError(
                f"parameters: {shown(parameter)}: models are compiled to packs, none comes by load"
            )
    with because("load request"):
        entry = await service.repository.load(name)
    service.metrics.requests.expect(name, entry.version)
    return {"name": name, "state": entry.state}


def _limit_of(document: dict[str, Any]) -> int | None:
    """Return the bytes that a replan allows; None: what the budget leaves.

    Raises:
        InvalidRequestError: ``document`` asks for no replan.
    """
    try:
        return schemas.Replan.model_validate(document).memory_bytes
    except ValidationError:
        raise InvalidRequestError(
            'replan takes {"memory_bytes": N}, a number of bytes above 0, or null'
        ) from None


@serves(
    CHANGES,
    "POST",
    f"{_MODEL}/replan",
    response_model=schemas.Replanned,
    responses=errors(*OBJECT, *LOADING),
    openapi_extra=takes(json_of(schemas.Replan, {"memory_bytes": 1 << 40})),
)
async def replan(asked: CurrentRequest, name: str) -> dict[str, Any]:
    """Serve a loaded model in less memory, or in more again; its requests wait in line meanwhile."""
    limit_bytes = _limit_of(await _read_object(asked))
    with because("replan request"):
        entries = await asked.service.repository.replan(name, limit_bytes)
    memory: Counter[str] = Counter()
    for entry in entries:
        memory.update(entry.fitted.plan.memory if entry.fitted else {})
    return {"name": name, "state": entries[-1].state, "memory_bytes": dict(memory) or None}


@serves(
    CHANGES,
    "POST",
    f"{_MODEL}/unload",
    response_model=schemas.ModelState,
    responses=errors(*OBJECT, 403, 404),
    openapi_extra=takes(json_of(schemas.UnloadRequest, {"parameters": {}}), is_optional=True),
)
async def unload(asked: CurrentRequest, name: str) -> dict[str, Any]:
    """Finish the model's requests and give its memory back; no model depends on another."""
    return await unload_model(asked.service, name, await _read_parameters(asked))


async def unload_model(
    service: Service, name: str, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Unload model ``name``; raises as Repository.unload, and for ``parameters`` of a wrong type."""
    _flag(parameters, "unload_dependents")
    with because("unload request"):
        await service.repository.unload(name)
    return {"name": name, "state": "UNAVAILABLE"}


# A model sent as an ONNX file: answered when it is in the repository, or step by step as it gets there.

# A part that is written, and one that comes meanwhile.
_PART_BYTES = 2 * AHEAD_BYTES


class UploadQuery(BaseModel):
    """``shape``: NAME=1,3,224,224, of an input whose file leaves it open."""

    shape: list[str] = []


@serves(
    UPLOADS,
    "POST",
    f"{_MODEL}/upload",
    response_model=schemas.Placed,
    responses=errors(400, 403, 408, 409, 413, 415, 500, 503, 504),
    openapi_extra=takes(BINARY),
)
async def upload(
    asked: CurrentRequest, name: str, query: Annotated[UploadQuery, Query()]
) -> Answer | dict[str, Any]:
    """Take the ONNX file that the body is, compile it, and serve it as the next version of the model.

    ``shape``: NAME=1,3,224,224, of an input whose file leaves it open; for several inputs repeated.
    A client that accepts ``text/event-stream`` is told of each step; others are answered at the end.
    """
    if (asked.header("content-type") or "").startswith("multipart/"):
        raise InvalidRequestError("upload: the body is the ONNX file itself, not a form")
    check_not_encoded(asked.headers)
    shapes = _shapes(query.shape)
    received = _received(asked, name, shapes)
    if MEDIA_TYPE in (asked.header("accept") or ""):
        return event_stream(_events(received, asked.service.settings.repository))
    async with received as taken:
        with asked.exchange.until_left():
            placed = await _placed(taken)
        return _public(placed, asked.service.settings.repository)


@asynccontextmanager
async def _received(
    asked: HttpRequest, name: str, shapes: Mapping[str, Lengths]
) -> AsyncIterator[Upload]:
    """Yield the upload of the file that the body is, when all of it has come."""
    service, exchange = asked.service, asked.exchange
    async with service.uploads.upload(name, shapes) as taken:
        with exchange.within(service.settings.upload_timeout, "the file was not read"):
            await taken.receive(_parts(exchange))
        yield taken


def _shapes(texts: Iterable[str]) -> dict[str, Lengths]:
    """Return the shapes of inputs by name.

    Raises:
        InvalidRequestError: a text is no shape.
    """
    try:
        return parse_shapes(texts)
    except ValueError as exc:
        raise InvalidRequestError(f"parameter shape: {exc}") from exc


async def _parts(exchange: Exchange) -> AsyncIterator[bytes]:
    """Yield the body part by part; request memory is held for one part, since the file goes to disk."""
    yield await exchange.beginning()
    while not exchange.is_read:
        await exchange.hold(_PART_BYTES)
        yield await exchange.part(reads_ahead=True)


async def _placed(taken: Upload) -> PlacedVersion:
    """Finish ``taken`` and return the version that it became."""
    async with aclosing(taken.make()) as steps:
        async for said in steps:
            if isinstance(said, PlacedVersion):
                return said
    raise AssertionError("an upload ends with what became of it")


def _public(placed: PlacedVersion, root: Path) -> dict[str, Any]:
    return {**placed.as_dict(), "reason": reason_of(placed.reason, root)}


async def _events(
    received: AbstractAsyncContextManager[Upload], root: Path
) -> AsyncGenerator[bytes]:
    """Yield the events of an upload: each ``step``, then ``placed``, or ``error`` with its status."""
    async with received as taken:
        try:
            async with aclosing(taken.make()) as steps:
                async for said in steps:
                    if isinstance(said, PlacedVersion):
                        yield event("placed", _public(said, root))
                    else:
                        yield event("step", {"step": said.step, "detail": said.detail})
        except FAILURES as exc:
            fault = reported(exc, root)
            yield event("error", {**fault.document, "status": fault.code.status})
