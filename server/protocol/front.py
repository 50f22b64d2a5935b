"""What requests go through before FastAPI's router, which takes as long as a small network.

Infer requests are answered here, by the same function as behind the router; there it stays for the
documentation and for other methods. What has a body waits for the server to have begun.
"""

import re

from fastapi import FastAPI, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from server.context import Context
from server.protocol.errors import KNOWN, answer_error
from server.protocol.infer import infer_tensors

_INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?/infer")


class Front:
    """Answers infer requests; hands all others to ``others``, the whole of ``app``."""

    def __init__(self, app: FastAPI, context: Context, others: ASGIApp) -> None:
        self._app = app
        self._context = context
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["method"] != "POST":
            await self._others(scope, receive, send)
            return
        found = _INFER.fullmatch(scope["path"])
        exchange, headers = scope["exchange"], scope["headers"]
        try:
            self._context.check_begun()
            if found is None:
                await self._others(scope, receive, send)
                return
            name, version = found.groups()
            response = await infer_tensors(self._context, exchange, headers, name, version)
        except KNOWN as exc:
            scope["app"] = self._app
            response = answer_error(Request(scope, receive, send), exc)
        await response(scope, receive, send)
