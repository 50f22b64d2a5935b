"""The tensors of an infer request, read from its client: body, memory and codec brought together."""

import asyncio
from collections.abc import Callable

from models.packs.manifest import Manifest
from server.codec import BodyDecoder, Framing, ModelRequest, decode_at_once
from server.codec.compression import opener
from server.memory.request_needs import (
    INFLATE_BYTES,
    LOOSE_BYTES,
    short_infer_bytes,
    with_long_text,
)
from server.requests.exchange import FREE_BYTES, Exchange

#: Raises where a request with this timeout in seconds (None: of its own it has none) is refused.
Check = Callable[[float | None], None]


async def read_tensors(
    exchange: Exchange, framing: Framing, manifest: Manifest, check: Check
) -> ModelRequest:
    """Return the infer request that the body of ``exchange`` is, to the model of ``manifest``.

    What it needs is held from the moment on in which more has come than anybody may send. ``check`` is
    asked when the JSON of a body has come before its raw tensors: these need not come where it refuses.

    Raises:
        InvalidRequestError: it is none. TooLargeError: it is over a limit. DisconnectedError: the client
            went away. Otherwise as Exchange.hold and ``check``.
    """
    ports, outputs = manifest.inputs, manifest.outputs
    need, short = _needs(framing, manifest)
    part = await exchange.beginning()
    # Where all of it is here and may not open to more, text and values take less on their way.
    await exchange.hold(short if len(part) <= FREE_BYTES else need)
    if exchange.is_read:
        request = decode_at_once(part, framing, ports, outputs)
        if request is not None:
            return request
    decoder = BodyDecoder(framing, ports, outputs)
    opened = opener(framing.coding, exchange.body_limit.n_bytes)
    is_checked = False
    while True:
        for number, block in enumerate(opened.blocks(part)):
            if number:  # others have their turn: a small part may open to a thousand times as much
                await asyncio.sleep(0)
            decoder.feed(block)
            if decoder.loose_bytes > LOOSE_BYTES:
                more = need + decoder.loose_bytes
                await exchange.hold(max(more, exchange.lease.held_bytes))
        if exchange.is_read:
            break
        if decoder.begun is not None and not is_checked:
            check(decoder.begun.timeout_seconds)
            is_checked = True
        part = await exchange.part()
    opened.finish()
    return decoder.finish()


def _needs(framing: Framing, manifest: Manifest) -> tuple[int, int]:
    """Return what the request holds while it is read; and where its body has come before that is held."""
    # Raw tensors need their bytes once; JSON of any length, what its values are on their way.
    has_short_text = framing.json_bytes is not None and framing.json_bytes <= FREE_BYTES
    short = short_infer_bytes(manifest)
    need = short if has_short_text else with_long_text(short)
    if framing.coding == "identity":
        return need, short
    return need + INFLATE_BYTES, need + INFLATE_BYTES  # a short body may open to a long one
