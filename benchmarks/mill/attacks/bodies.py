"""Bodies of every size, and the same thing asked for a thousand times."""

import json

from benchmarks.mill.attacks.requests import WIDE_VALUES, head, post, tiny_document
from benchmarks.mill.target import AttackedServer

_MODELS = ("tiny", "wide", "cifar10", "nobody")
# What `wide` takes is 1 MiB and 64 bytes a number; the service takes 64 MiB of anything.
_WIDE_LIMIT = (1 << 20) + 64 * WIDE_VALUES
_SIZES = (0, 1, 2, 1000, 1 << 16, 1 << 20, _WIDE_LIMIT - 1, _WIDE_LIMIT, _WIDE_LIMIT + 1)
_LARGE = (2 * _WIDE_LIMIT, 64 << 20, (64 << 20) + 1)
_ANNOUNCED = (10**12, 2**63, 2**64 + 1, -1, "1e3", "0x10", "", "5, 5", "5\r\nContent-Length: 6")
_PIECE = bytes(1 << 16)


async def sizes(target: AttackedServer) -> None:
    """Send bodies from nothing to over the limits, of zeros or blanks; and lengths that are none."""

    async def act(index: int) -> None:
        path = f"/v2/models/{target.random.choice(_MODELS)}/infer"
        if target.random.random() < 0.2:
            await target.ask(head(target.random.choice(_ANNOUNCED), path), _PIECE)
            return
        size = target.random.choice(_SIZES + _LARGE if index == 0 else _SIZES)
        filling = target.random.choice((b"\0", b" ", b"1", b"["))
        whole, rest = divmod(size, len(_PIECE))
        piece = filling * len(_PIECE)
        await target.ask(head(size, path), *[piece] * whole, piece[:rest])

    await target.crowd(6, act, pause=0.1)


async def repeats(target: AttackedServer) -> None:
    """Ask for an output, give an input or a parameter thousands of times; send lists without end."""
    wanted = [{"name": "mixed"}]
    wide = tiny_document(name="image", shape=[1, 3, 224, 224], data=[0.1] * WIDE_VALUES)
    tiny = tiny_document()
    documents = [
        ("wide", {**wide, "outputs": wanted * 1000}),
        ("tiny", {**tiny, "outputs": [{"name": "y"}] * 1000}),
        ("tiny", {**tiny, "outputs": [{"name": "y"}] * 20_000}),
        ("tiny", {"inputs": tiny["inputs"] * 5000}),
        ("tiny", tiny_document(data=[0] * 400_000)),
        ("tiny", {**tiny, "parameters": {str(index): index for index in range(50_000)}}),
        ("tiny", {**tiny, "id": "i" * 1_000_000}),
        ("wide", tiny_document(name="image", data=[[[0]] * 1000] * 1000)),
    ]
    requests = [
        post(json.dumps(document).encode(), f"/v2/models/{model}/infer")
        for model, document in documents
    ]

    async def act(index: int) -> None:
        await target.ask(target.random.choice(requests))

    await target.crowd(4, act, pause=0.2)
