"""What is asked of the repository over HTTP: its index, load, unload, replan, and uploads."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

from tests.exchanges.servers import Server, open_sized
from tests.exchanges.tensors import TOTAL, form, infer
from tests.exchanges.wire import Exchange, Wire, ask, http, short

ROOT = "/v2/repository"
Body = bytes | dict[str, Any] | list[Any] | None


def repository(server: Server) -> Iterator[Exchange]:
    indices: dict[str, Body] = {
        "": None,
        "{}": {},
        "ready": {"ready": True},
        "not ready": {"ready": False},
        "ready of text": {"ready": "yes"},
        "a list": [],
        "no JSON": b"{",
        "too long": b" " * 70_000,
    }
    for what, body in indices.items():
        yield f"index {what}", http(server, ask("POST", f"{ROOT}/index", body))
    for what, (headers, host) in {
        "for another name": ((), "evil.example"),
        "by a proxy": (("x-forwarded-for: 127.0.0.1",), "localhost"),
        "by via": (("via: 1.1 a",), "localhost"),
        "from a page": (("origin: http://evil.example",), "localhost"),
        "from our page": ((f"origin: http://localhost:{server.port}",), f"localhost:{server.port}"),
        "from another port": (("origin: http://localhost:1",), f"localhost:{server.port}"),
        "from a cross-site page": (("sec-fetch-site: cross-site",), "localhost"),
        "from null": (("origin: null",), "localhost"),
        "for another address": ((), "10.0.0.1"),
        "for IPv6": ((), "[::1]:80"),
        "without a host": ((), ""),
    }.items():
        asked = ask("POST", f"{ROOT}/models/spare/load", {}, *headers, host=host)
        yield f"load {what}", http(server, asked)
    yield "load again", http(server, ask("POST", f"{ROOT}/models/spare/load"))
    yield "spare serves", http(server, ask("GET", "/v2/models/spare"))
    for what, parameters in {
        "config that is so": {"config": json.dumps({"name": "spare", "backend": "layerstream"})},
        "config of another name": {"config": '{"name": "other"}'},
        "config that changes": {"config": '{"max_batch_size": 8}'},
        "config that is none": {"config": "{"},
        "config that is an object": {"config": {}},
        "a file": {"file:1/model.onnx": "AAAA"},
        "others": {"what": 1},
    }.items():
        asked = ask("POST", f"{ROOT}/models/spare/load", {"parameters": parameters})
        yield f"load with {what}", http(server, asked)
    loads: dict[str, Body] = {
        "parameters a list": {"parameters": []},
        "a list": [],
        "no JSON": b"x",
    }
    for what, body in loads.items():
        yield f"load: {what}", http(server, ask("POST", f"{ROOT}/models/spare/load", body))
    for name in (
        "nobody",
        "broken",
        "huge",
        "..",
        ".hidden",
        "..%2fpacks%2ftotal",
        "n" * 300,
        "a%00b",
    ):
        yield f"load {name[:20]}", http(server, ask("POST", f"{ROOT}/models/{name}/load"))
    replans: dict[str, Body] = {
        "in little": {"memory_bytes": 1 << 20},
        "in too little": {"memory_bytes": 10},
        "in what is free": {"memory_bytes": None},
        "in nothing": {"memory_bytes": 0},
        "in text": {"memory_bytes": "1"},
        "in 1e6": {"memory_bytes": 1e6},
        "in a fraction": {"memory_bytes": 1.5},
        "without": {},
        "with more": {"memory_bytes": 1, "what": 1},
    }
    for what, document in replans.items():
        asked = ask("POST", f"{ROOT}/models/photo/replan", document)
        yield f"replan {what}", http(server, asked)
    for name in ("nobody", "broken"):
        asked = ask("POST", f"{ROOT}/models/{name}/replan", {"memory_bytes": 1 << 20})
        yield f"replan {name}", http(server, asked)
    unloads: dict[str, Body] = {
        "dependents of text": {"parameters": {"unload_dependents": "x"}},
        "with dependents": {"parameters": {"unload_dependents": True}},
        "again": None,
    }
    for what, body in unloads.items():
        yield f"unload {what}", http(server, ask("POST", f"{ROOT}/models/spare/unload", body))
    for name in ("nobody", "broken", "weighted"):
        yield f"unload {name}", http(server, ask("POST", f"{ROOT}/models/{name}/unload"))
    for path in ("", "/ready", "/config", "/stats"):
        yield f"unloaded{path}", http(server, ask("GET", f"/v2/models/spare{path}"))
    yield "infer of an unloaded one", infer(server, TOTAL, path="/v2/models/spare/infer")
    yield (
        "replan of an unloaded one",
        http(server, ask("POST", f"{ROOT}/models/spare/replan", {"memory_bytes": None})),
    )
    yield "index after that", http(server, ask("POST", f"{ROOT}/index"))


def uploads(server: Server) -> Iterator[Exchange]:
    file, root = open_sized(), f"{ROOT}/models"
    data, header = form(('name="file"; filename="a"', file))
    for what, asked in {
        "a form": ask("POST", f"{root}/new/upload", data, header),
        "gzip": ask("POST", f"{root}/new/upload", gzip.compress(file), "content-encoding: gzip"),
        "no file": ask("POST", f"{root}/new/upload", b""),
        "no ONNX": ask("POST", f"{root}/new/upload", b"no ONNX"),
        "too long": ask("POST", f"{root}/new/upload", bytes(5000)),
        "open sizes": ask("POST", f"{root}/new/upload", file),
        "a wrong shape": ask("POST", f"{root}/new/upload?shape=x", file),
        "another site": ask("POST", f"{root}/new/upload", file, "origin: http://evil.example"),
        "a wrong name": ask("POST", f"{root}/.hidden/upload", file),
        "by GET": ask("GET", f"{root}/new/upload"),
    }.items():
        yield f"upload: {what}", http(server, asked)
    accepts, good = "accept: text/event-stream", f"{root}/new/upload?shape=x=1,4"
    yield "upload: events", http(server, ask("POST", good, file, accepts), view=events)
    asked = ask("POST", f"{root}/new/upload", b"no ONNX", accepts)
    yield "upload: events of an error", http(server, asked, view=events)
    x = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [-1, 0, 1, 2]}
    yield "upload: it serves", infer(server, {"inputs": [x]}, path="/v2/models/new/infer")
    path = f"{root}/other/upload"
    with Wire(server) as wire:
        wire.send(ask("POST", path, None, "content-length: 1000", "expect: 100-continue"))
        said = wire.answer()
        yield "upload: another under way", http(server, ask("POST", path, file))
        wire.send(b"no ONNX" + bytes(993))
        yield "upload: expected", [*said, *wire.answer(), wire.end()]


def events(body: bytes) -> str:
    """Return the kinds of events, each step once, and what was placed or went wrong."""
    told = [short(event.split(b',"detail"')[0]) for event in body.split(b"\n\n") if event]
    return "\n".join(dict.fromkeys(told))
