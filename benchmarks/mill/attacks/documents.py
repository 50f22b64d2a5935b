"""Documents that are no request: wrong types, encodings, numbers; lists inside lists inside lists."""

import json
from typing import Any

from benchmarks.mill.attacks.requests import post, tiny_document
from benchmarks.mill.target import AttackedServer

_TENSORS: tuple[dict[str, Any], ...] = (
    {"shape": [16, 1]},
    {"shape": [1, -16]},
    {"shape": [2**62, 2**62]},
    {"shape": ["1", "16"]},
    {"shape": [[1], [16]]},
    {"shape": list(range(1000))},
    {"shape": None},
    {"datatype": "FP64"},
    {"datatype": "X" * 100_000},
    {"name": "n" * 100_000},
    {"name": "\ud800"},
    {"data": [[1] * 8, [1] * 7]},
    {"data": [1] * 15},
    {"data": [True] * 16},
    {"data": ["1"] * 16},
    {"data": [10**400] * 16},
    {"data": {"0": 1}},
    {"data": "x" * 900_000},
    {"parameters": {"binary_data_size": 64}},
    {"k" * 900_000: 1},
)
_RAW: tuple[bytes, ...] = (
    b"",
    b"null",
    b"[]",
    b'"text"',
    b"\xff\xfe\xfd",
    b"\xef\xbb\xbf" + json.dumps(tiny_document()).encode(),
    json.dumps(tiny_document()).encode("utf-16"),
    json.dumps(tiny_document()).encode("utf-32"),
    b'{"inputs":[{"name":"x","shape":[1,16],"datatype":"FP32","data":[NaN]}]}',
    b'{"inputs":[{"name":"x","shape":[1,16],"datatype":"FP32","data":[Infinity,-Infinity]}]}',
    b'{"inputs":[{"name":"x","shape":[1,16],"datatype":"FP32","data":[1e999]}]}',
    b'{"inputs":' + b"9" * 900_000 + b"}",
    b'{"inputs":"' + b"\\ud800" * 100_000 + b'"}',
    b'{"' + b"k" * 900_000 + b'":1}',
    b"{" + b",".join(b'"%d":0' % index for index in range(50_000)) + b"}",
    b'{"inputs":[{"name":"x"' + b',"name":"x"' * 50_000 + b"}]}",
)
_NESTS: tuple[tuple[bytes, bytes], ...] = ((b"[", b"]"), (b'{"a":', b"}"), (b'[{"":', b"}]"))


async def documents(target: AttackedServer) -> None:
    """Send each kind of bad document, in random order."""
    bad = [post(json.dumps(tiny_document(**changes)).encode()) for changes in _TENSORS]
    bad += [post(body) for body in _RAW]

    async def act(index: int) -> None:
        await target.ask(target.random.choice(bad))

    await target.crowd(4, act, pause=0.05)


async def nesting(target: AttackedServer) -> None:
    """Open lists and objects deeper than any parser goes, closed or not."""

    async def act(index: int) -> None:
        opened, closed = target.random.choice(_NESTS)
        depth = int(10 ** target.random.uniform(1, 5.9))
        ending = target.random.choice((closed * depth, b"", b"1" + closed * depth))
        prefix = target.random.choice((b"", b'{"inputs":', b'{"inputs":[{"data":'))
        body = (prefix + opened * depth + ending)[: (1 << 20) + 2000]
        await target.ask(post(body))

    await target.crowd(4, act, pause=0.05)
