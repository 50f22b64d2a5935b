"""What happens to every request: an id, a limit on its body, one line in the log, an answer."""

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.errors import TooLargeError
from server.logs import request_id

_log = logging.getLogger("server.access")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestMiddleware:
    """Gives the request an id (the client's X-Request-ID where sane), limits its body, logs it."""

    def __init__(self, app: ASGIApp, max_body: int) -> None:
        self._app = app
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        offered = headers.get("x-request-id", "")
        identity = offered if _ID.fullmatch(offered) else uuid.uuid4().hex
        token = request_id.set(identity)
        started = time.perf_counter()
        status = 499  # what nginx calls a client that closed the connection before an answer
        answered = False

        async def tagged_send(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], True
                MutableHeaders(scope=message)["x-request-id"] = identity
            await send(message)

        try:
            if _declared_length(headers) > self._max_body:
                response = JSONResponse({"error": self._message()}, 413, {"connection": "close"})
                await response(scope, receive, tagged_send)
            else:
                await self._app(scope, self._limited(receive), tagged_send)
        except Exception:
            if answered:
                raise
            logging.getLogger(__name__).exception("unexpected error")
            response = JSONResponse({"error": "internal error; the log has the details"}, 500)
            await response(scope, receive, tagged_send)
        finally:
            _log.info(
                "request",
                extra={
                    "method": scope["method"],
                    "path": scope["path"],
                    "status": status,
                    "seconds": round(time.perf_counter() - started, 6),
                },
            )
            request_id.reset(token)

    def _message(self) -> str:
        return f"the body is over the limit of {self._max_body} bytes"

    def _limited(self, receive: Receive) -> Receive:
        received = 0

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_body:
                raise TooLargeError(self._message())
            return message

        return limited


def _declared_length(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    return int(text[:20]) if text.isdecimal() else 0  # int() refuses thousands of digits
