"""Routes of FastAPI as ours are: what each says of who may ask, and the endpoints' first arguments.

Endpoints return an Answer, or a document that becomes JSON. They may take the request (``CurrentRequest``),
the service (``CurrentService``), parts of the path by name, and a model of the query.
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import lru_cache, wraps
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import URL
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from server.errors import shown
from server.faults import Code, Fault
from server.protocol.answers import REQUEST, Answer, as_error, as_json
from server.protocol.docstrings import text_of
from server.protocol.documentation import errors, json_answer
from server.protocol.http_request import HttpRequest, Rules, path_within
from server.service import Service

#: Arguments of endpoints that are parts of the path; one that the path has not is left out.
_PATH_PARAMETERS = ("name", "version", "region")
#: What so many paths mean is remembered; the number has a limit since clients may send any path.
CACHED_PATHS = 64

Endpoint = Callable[..., Awaitable[Any]]
_Endpoint = TypeVar("_Endpoint", bound=Endpoint)


async def _current_request(request: Request) -> HttpRequest:
    current: HttpRequest = request.scope[REQUEST]
    return current


async def _current_service(request: Request) -> Service:
    current: HttpRequest = request.scope[REQUEST]
    return current.service


CurrentRequest = Annotated[HttpRequest, Depends(_current_request)]
CurrentService = Annotated[Service, Depends(_current_service)]


class Route(APIRoute):
    """A route whose path alone decides that it answers: another method of the path is refused by it.

    ``rules``: what must be known of a request to it before it is routed.
    """

    rules: ClassVar[Rules] = Rules()

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        responses = options.get("responses") or {}
        if self.rules.admitted != "open":
            responses = {**responses, **errors(401, model=self.rules.error)}
        model = options.get("response_model")
        options["response_description"] = "The answer."
        #: What it answers with, where that is JSON of one schema.
        self.answered: type[BaseModel] | None = None
        if inspect.isclass(model) and issubclass(model, BaseModel):
            # By reference: FastAPI would make a validator, and answers are not validated.
            self.answered = model
            options["response_model"] = None
            responses = {**responses, 200: json_answer(model, responses.get(200, {}))}
        options["responses"] = responses
        super().__init__(path, _adapted(path, endpoint), **options)
        methods = self.methods or set()
        #: The methods that are answered: HEAD is GET without the body.
        self.allowed = sorted({*methods, "HEAD"} if "GET" in methods else methods)

    def describe(self) -> None:
        """Take the descriptions that documents show from the docstrings of endpoint and schema."""
        self.description = text_of(inspect.unwrap(self.endpoint))
        if self.answered is not None:
            self.response_description = text_of(self.answered)
        for response in self.responses.values():
            if "model" in response:
                response["description"] = text_of(response["model"])

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child_scope = super().matches(scope)
        return Match.FULL if match is Match.PARTIAL else match, child_scope

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] in self.allowed:
            await self.app(scope, receive, send)
        else:
            await self._refused(scope)(scope, receive, send)

    def _refused(self, scope: Scope) -> Answer:
        """Return the answer to another method.

        NAME:ACTION with an unknown action matches the path of a model of that name. Except for a GET the
        client means an action, so a 404 names the actions that there are.
        """
        method, path = scope["method"], scope["path"]
        place, _, action = path.rpartition(":")
        actions = sorted(_actions_of(scope, place))
        if method not in ("GET", "HEAD") and action not in actions and actions:
            there_are = ", ".join(f":{name}" for name in actions)
            message = (
                f"Not Found: {shown(place)} has no action {shown(action)}; there are {there_are}"
            )
            return as_error(Fault(Code.MISSING, message))
        methods = ", ".join(self.allowed)
        message = f"Method Not Allowed: {shown(path)} takes {methods}"
        fault = Fault(Code.METHOD_NOT_ALLOWED, message)
        return as_error(fault, self.rules.document(fault), {"Allow": methods})


class DirectRoute(Route):
    """A route of short requests by the thousand; its endpoint takes the request and parts of the path.

    FastAPI documents it, solves nothing for it, and opens no stacks for what would be closed behind its
    answer: that takes as long as a small network.
    """

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:
        super().__init__(path, endpoint, **options)
        self._answer: Callable[..., Awaitable[Response]] = endpoint

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        matched = None
        if scope["type"] == "http":
            matched = self.path_regex.match(path_within(scope["path"], scope.get("root_path", "")))
        if matched is None:
            return Match.NONE, {}
        return Match.FULL, {"endpoint": self.endpoint, "path_params": matched.groupdict()}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in self.allowed:
            await super().handle(scope, receive, send)
            return
        answer = await self._answer(scope[REQUEST], **scope["path_params"])
        await answer(scope, receive, send)


def route_class(rules: Rules) -> type[Route]:
    """Return the class of routes with these ``rules``, for a router."""
    return type("Route", (Route,), {"rules": rules})


def _adapted(path: str, endpoint: Endpoint) -> Endpoint:
    """Return ``endpoint`` as FastAPI is to see it at ``path``: it gives an answer, and takes its parts."""

    @wraps(endpoint)
    async def adapted(**arguments: Any) -> Response:
        answer = await endpoint(**arguments)
        return answer if isinstance(answer, Response) else as_json(answer)

    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        if parameter.name not in _PATH_PARAMETERS
        else inspect.Parameter(parameter.name, inspect.Parameter.KEYWORD_ONLY, annotation=str)
        for parameter in inspect.signature(endpoint).parameters.values()
        if parameter.name not in _PATH_PARAMETERS or f"{{{parameter.name}}}" in path
    ]
    signature = inspect.Signature(parameters, return_annotation=Response)
    adapted.__signature__ = signature  # type: ignore[attr-defined]
    return adapted


def serves(
    router: APIRouter, method: Literal["GET", "POST"], *paths: str, **options: Any
) -> Callable[[_Endpoint], _Endpoint]:
    """Return a decorator that adds its function to ``router`` at each of ``paths``."""

    def add(endpoint: _Endpoint) -> _Endpoint:
        for path in paths:
            router.add_api_route(path, endpoint, methods=[method], **options)
        return endpoint

    return add


def of_model(end: str) -> tuple[str, str]:
    """Return the paths with this ``end`` of a model's latest version, and of one that is named."""
    return f"/v2/models/{{name}}{end}", f"/v2/models/{{name}}/versions/{{version}}{end}"


# What is known of a path before it is routed, and what happens to one without a route.


class RulesOfPaths:
    """Finds the rules of the route of a path; those of no route are the usual ones."""

    def __init__(self, routes: Sequence[BaseRoute]) -> None:
        self._special = [
            route for route in routes if isinstance(route, Route) and route.rules != Rules()
        ]
        self.find = lru_cache(CACHED_PATHS)(self._find)

    def _find(self, path: str, method: str) -> Rules:
        """Return the rules for a request of ``path``, without the prefix of the application."""
        for route in self._special:
            if route.path_regex.match(path):
                return route.rules if method in route.allowed else route.rules.of_other_methods
        return Rules()


async def no_route(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request without a route: a path with a slash at its end is elsewhere, others are nowhere."""
    if scope["type"] != "http":
        await scope["app"].router.not_found(scope, receive, send)
        return
    path = scope["path"]
    message = f"Not Found: {shown(path)} is no path of this server"
    response: Response = as_error(Fault(Code.MISSING, message))
    if path.endswith("/"):
        shorter = {**scope, "path": path.rstrip("/")}
        if any(route.matches(shorter)[0] is Match.FULL for route in scope["app"].routes):
            response = RedirectResponse(str(URL(scope=shorter)))
    await response(scope, receive, send)


def _actions_of(scope: Scope, place: str) -> Iterator[str]:
    """Yield the actions that may follow ``place`` and a colon; nothing where it is no path."""
    for route in scope["app"].routes:
        _, colon, action = getattr(route, "path", "").rpartition("}:")
        if colon and route.matches({**scope, "path": f"{place}:{action}"})[0] is Match.FULL:
            yield action
