"""Packs on a cluster of Ray: a deployment for each budget, its replicas placed by the memory that it takes.

    serve run application:build repository=/models 'budgets={...}'      (or a file: deploy/ray/serve.yaml)

Ray decides how many replicas there are and which one answers: one that has the model open, where it can be.
A replica is a process with one budget, in which the least recently used models make room (shelf.py).
POST /v2/models/NAME/infer is that of `layerstream serve`, with tensors as JSON or raw.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from ray.util.metrics import Counter
from shelf import Shelf
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from layerstream import DeadlineError, RefusedError
from models.packs.folders import find_pack
from models.runtime.sessions import claim_process, use_threads
from models.sizes import parse_size
from server.codec.framing import JSON_LENGTH, Framing
from server.codec.infer_bodies import Body, BodyDecoder
from server.codec.messages import ModelAnswer, Output, Signature
from server.errors import InvalidRequestError
from server.faults import FAILURES, Code, Fault, traceable
from server.memory.process_memory import process_bytes

_log = logging.getLogger("ray.serve")

#: Of a replica, beside what a process of `layerstream serve` takes: Ray's modules, 40 MB and library pages.
_RAY_BYTES = 64 << 20
#: Status, headers and body of an answer.
Answer = tuple[int, dict[str, str], bytes]


class Group(BaseModel):
    """Models that share a budget, and how many replicas answer for them.

    ``models``: names in the repository, those that are most wanted first. ``threads``: of each replica, a
    core for each. ``at_once``: requests that a replica works at; ``waiting``: more before it refuses.
    """

    model_config = ConfigDict(extra="forbid")

    budget: str
    models: list[str] = Field(min_length=1)
    threads: PositiveInt = 1
    min_replicas: PositiveInt = 1
    max_replicas: PositiveInt = 1
    at_once: PositiveInt = 4
    waiting: PositiveInt = 64

    @property
    def memory_bytes(self) -> int:
        """What a replica takes: the budget, and the bound of a process that serves its models."""
        return parse_size(self.budget) + process_bytes(len(self.models)) + _RAY_BYTES


class Arguments(BaseModel):
    """``repository``: a folder of packs, the same on each node. ``budgets``: by name of the deployment.

    ``entries``: how many replicas find the budget of a model; each holds the bodies of its requests.
    """

    model_config = ConfigDict(extra="forbid")

    repository: Path
    budgets: dict[str, Group] = Field(min_length=1)
    entries: PositiveInt = 1


def build(arguments: Arguments) -> serve.Application:
    """Return the application: an entry, and for each budget a deployment behind it.

    Raises:
        ValueError: a model has two budgets, or a size is none.
    """
    handles: dict[str, DeploymentHandle] = {}
    for name, group in arguments.budgets.items():
        packs = {model: arguments.repository / model for model in group.models}
        deployment = serve.deployment(
            Replica,
            name=name,
            ray_actor_options={"num_cpus": group.threads, "memory": group.memory_bytes},
            max_ongoing_requests=group.at_once,
            max_queued_requests=group.waiting,
            autoscaling_config={
                "min_replicas": group.min_replicas,
                "max_replicas": group.max_replicas,
                "target_ongoing_requests": group.at_once / 2,
            },
        )
        bound = deployment.bind(group.budget, packs, group.threads)
        if twice := handles.keys() & packs.keys():
            raise ValueError(f"models in two budgets: {', '.join(sorted(twice))}")
        handles |= dict.fromkeys(packs, bound)
    entry = serve.deployment(
        Entry,
        num_replicas=arguments.entries,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=1000,
    )
    return entry.bind(handles)


class Replica:
    """One budget, and the models that answer in it."""

    def __init__(self, budget: str, packs: Mapping[str, Path], threads: int) -> None:
        claim_process()
        use_threads(threads)
        self._shelf = Shelf(budget, packs)
        self._versions = {name: find_pack(path).name for name, path in packs.items()}

        # Ray's list of what is open here, for its routing: as long as the shelf's, and in its order.
        @serve.multiplexed(max_num_models_per_replica=len(self._shelf.names))
        async def listed(name: str) -> str:
            return name

        self._listed = listed

    async def infer(self, name: str, body: bytes, headers: list[tuple[bytes, bytes]]) -> Answer:
        """Answer ``body`` by the model called ``name``; what goes wrong is an answer, too."""
        began = asyncio.get_running_loop().time()
        try:
            await self._listed(name)
            async with self._shelf.model(name) as model:
                decoder = BodyDecoder(Framing.of(headers), Signature(model.inputs, model.outputs))
                decoder.feed(body)
                request = decoder.finish()
                if any(wanted.n_classes for wanted in request.wanted):
                    raise InvalidRequestError("classification: ask `layerstream serve`")
                limit = request.timeout_seconds
                async with asyncio.timeout_at(None if limit is None else began + limit):
                    outputs = await model.infer(request.inputs)
            wanted = [
                Output(each.name, outputs[each.name], each.is_binary) for each in request.wanted
            ]
            return _answered(Body(ModelAnswer(name, self._versions[name], request.id, wanted)))
        except TimeoutError:
            return refused(
                DeadlineError(f"model {name}: no answer within the timeout of the request")
            )
        except FAILURES as exc:
            return refused(exc)


def _answered(body: Body) -> Answer:
    text = b"".join(body.text())
    if not body.is_mixed:
        return 200, {"Content-Type": "application/json"}, text
    headers = {"Content-Type": "application/octet-stream", JSON_LENGTH: str(len(text))}
    return 200, headers, b"".join([text, *body.raw()])


def refused(exc: Exception) -> Answer:
    """Return the answer to a request that ended with ``exc``: no memory and no time may pass by."""
    fault = Fault.of(exc)
    passing = isinstance(exc, RefusedError | DeadlineError)
    status = 503 if isinstance(exc, RefusedError) else fault.code.status
    if fault.code.level is not None:
        text = f"{type(exc).__name__}: {exc}"
        _log.log(fault.code.level, "%s", text, exc_info=traceable(exc))
    headers = {"Content-Type": "application/json"} | ({"Retry-After": "1"} if passing else {})
    return status, headers, orjson.dumps(fault.document)


class Entry:
    """Knows which budget answers for a model. What a replica had when it died, another one is asked."""

    def __init__(self, models: Mapping[str, DeploymentHandle]) -> None:
        self._models = {
            name: handle.options(method_name="infer", multiplexed_model_id=name)
            for name, handle in models.items()
        }
        self._lost = Counter(
            "layerstream_lost_requests",
            "Requests whose replica died, by what came of them",
            ("outcome",),
        )

    async def __call__(self, request: Request) -> Response:
        match request.url.path.strip("/").split("/"):
            case ["v2", "health", "live" | "ready"]:
                return JSONResponse({"ready": True})  # Ray asks nobody who is not
            case ["v2", "models", name, "infer"] if request.method == "POST":
                handle = self._models.get(name)
                if handle is not None:
                    return await self._asked(handle, name, request)
        fault = Fault(Code.MISSING, f"{request.method} {request.url.path}: no such model")
        return JSONResponse(fault.document, fault.code.status)

    async def _asked(self, handle: DeploymentHandle, name: str, request: Request) -> Response:
        body, headers = await request.body(), request.headers.raw
        for outcome in ("answered", "failed"):
            try:
                status, sent, answer = await handle.remote(name, body, headers)
            except BackPressureError:
                return _later(f"model {name}: too many requests wait")
            except RayActorError:  # an answer depends on nothing but its request
                self._lost.inc(tags={"outcome": outcome})
            else:
                return Response(answer, status, sent)
        return _later(f"model {name}: its replicas died")


def _later(why: str) -> Response:
    fault = Fault(Code.BUSY, why)
    return JSONResponse(fault.document, fault.code.status, {"Retry-After": "1"})
