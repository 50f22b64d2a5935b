"""Parameters of requests about models: small JSON objects, often none."""

from collections.abc import Mapping
from typing import Any

import orjson

from server.errors import InvalidRequestError, TooLargeError
from server.protocol.routing import Asked

_MOST_BYTES = 64 << 10


async def read_object(asked: Asked) -> dict[str, Any]:
    """Return the body of what is ``asked`` as a JSON object; an empty body is an empty one.

    Raises:
        InvalidRequestError: it is none. TooLargeError: it is over 64 KiB. DisconnectedError: the client
            went away. DeadlineError: it took too long.
    """
    exchange = asked.exchange
    async with exchange.within(asked.context.settings.request_timeout):
        body = await exchange.beginning()
        while not exchange.is_read and len(body) <= _MOST_BYTES:
            await exchange.hold(_MOST_BYTES)
            body += await exchange.part()
    if len(body) > _MOST_BYTES:
        raise TooLargeError(f"the body is over the limit of {_MOST_BYTES} bytes")
    if not body.strip():
        return {}
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequestError(f"the body is not JSON: {exc.msg}") from None
    if not isinstance(document, dict):
        raise InvalidRequestError("the body is not a JSON object")
    return document


async def read_parameters(asked: Asked) -> dict[str, Any]:
    """Return the ``parameters`` of the body of what is ``asked``; raises as ``read_object``."""
    found = (await read_object(asked)).get("parameters", {})
    if not isinstance(found, dict):
        raise InvalidRequestError("parameters: not a JSON object")
    return found


def flag(holder: Mapping[str, Any], name: str) -> bool:
    """Return the boolean ``name`` of ``holder``; False where there is none.

    Raises:
        InvalidRequestError: it is none.
    """
    value = holder.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequestError(f"{name}: not a boolean")
    return value
