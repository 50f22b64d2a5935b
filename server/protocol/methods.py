"""Methods of a path: HEAD answers where GET does; another one is told those that the path takes."""

from collections.abc import Iterable

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import shown


class HeadMiddleware:
    """Has a HEAD request answered as GET and keeps the body back: the answer ends where that begins.

    An answer that has no end would keep its client waiting; whoever makes one finds its client gone.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        is_over = False

        async def send_head(message: Message) -> None:
            nonlocal is_over
            if is_over:
                return
            if message["type"] == "http.response.body":
                is_over, message = True, {**message, "body": b"", "more_body": False}
            await send(message)

        await self._app({**scope, "method": "GET"}, receive, send_head)


def not_allowed(routes: Iterable[BaseRoute], scope: Scope) -> HTTPException:
    """Return why the method of ``scope`` is not for its path: a 405 with all methods that are.

    A path that ends in NAME:ACTION would be that of a model called so: where no GET is asked of it the
    action is meant, and a 404 names those that there are.
    """
    place, _, action = scope["path"].rpartition(":")
    actions = _actions(routes, place)
    if scope["method"] not in ("GET", "HEAD") and action not in actions and actions:
        there_are = ", ".join(f":{each}" for each in actions)
        said = f"Not Found: {shown(place)} has no action {shown(action)}; there are {there_are}"
        return HTTPException(404, said)
    methods = _methods(routes, scope)
    said = f"Method Not Allowed: {shown(scope['path'])} takes {methods}"
    return HTTPException(405, said, {"Allow": methods})


def _actions(routes: Iterable[BaseRoute], place: str) -> list[str]:
    """Return what may stand behind ``place`` and a colon; nothing where it is no path."""
    actions = {
        action
        for route in routes
        if isinstance(route, Route) and "}:" in route.path
        if route.path_regex.match(f"{place}:{(action := route.path.rpartition(':')[2])}")
    }
    return sorted(actions)


def _methods(routes: Iterable[BaseRoute], scope: Scope) -> str:
    """Return the methods of the first of ``routes`` that is meant, and of others with the same path."""
    found = [
        route
        for route in routes
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE
    ]
    same = [route for route in found if route.path == found[0].path]
    methods = {method for route in same for method in route.methods or ()}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
