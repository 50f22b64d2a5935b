"""What the usual server is asked over HTTP: every endpoint, and what can be wrong with a request."""

from collections.abc import Iterator

from tests.exchanges.repository import repository
from tests.exchanges.servers import Server
from tests.exchanges.tensors import GOOD, INFER, images, inference, wrong_bodies, wrong_tensors
from tests.exchanges.wire import (
    Exchange,
    Wire,
    ask,
    chunked,
    file_of_page,
    http,
    names,
    operations,
    short,
    structure,
)


def usual(server: Server) -> Iterator[Exchange]:
    for room in (about, models, inference, wrong_tensors, wrong_bodies, images, methods, framing):
        yield from room(server)
    yield from other_names(server)
    yield from repository(server)
    # What it counted of all this.
    for path in ("/v2/models/stats", "/v2/models/total/stats", "/v2/models/total/versions/1/stats"):
        yield f"after all of it {path}", http(server, ask("GET", path))
    yield "metrics after all of it", http(server, ask("GET", "/metrics"), view=names)


# Requests without a body


def about(server: Server) -> Iterator[Exchange]:
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/docs", "/"):
        view = file_of_page if path == "/" else short
        for method in ("GET", "HEAD"):
            yield f"{method} {path}", http(server, ask(method, path), view=view)
    for path in (
        "/v2/",
        "/v2/health",
        "/v2/health/live/",
        "/v2?x=1",
        "//v2",
        "/v2/health/live?a=%zz",
    ):
        yield f"GET {path}", http(server, ask("GET", path))
    yield "GET /metrics", http(server, ask("GET", "/metrics"), view=names)
    yield "HEAD /metrics", http(server, ask("HEAD", "/metrics"))
    request = ask("GET", "/metrics", None, "accept: application/openmetrics-text")
    yield "GET /metrics as OpenMetrics", http(server, request, view=names)
    yield "GET /openapi.json", http(server, ask("GET", "/openapi.json"), view=operations)
    for path in ("index.html", "main.js", "style.css", "icon.svg"):
        request = ask("GET", f"/page/files/{path}")
        yield f"page file {path}", http(server, request, view=file_of_page)
    main = "/page/files/main.js"
    yield "HEAD of a page file", http(server, ask("HEAD", main))
    for path in ("nothing.js", "..%2froutes.py", "../routes.py", "", "."):
        yield f"page file {path!r}", http(server, ask("GET", f"/page/files/{path}"))
    with Wire(server) as wire:
        wire.send(ask("GET", "/page/events"))
        yield "page events", wire.first_events()
    yield "HEAD of page events", http(server, ask("HEAD", "/page/events"))
    for name in ("photo", "spare", "nobody"):
        request = ask("GET", f"/page/models/{name}/arena")
        view = structure if name == "photo" else short
        yield f"arena of {name}", http(server, request, view=view)
    for name in ("spare", "nobody"):
        request = ask("GET", f"/page/models/{name}/frontier")
        yield f"frontier of {name}", http(server, request)
    request = ask("GET", "/page/models/photo/frontier")
    yield "frontier of photo", http(server, request, view=structure)
    request = ask("GET", "/page/models/photo/frontier", host="evil.example")
    yield "frontier for a page of another site", http(server, request)
    for path in ("/v2/trace/setting", "/v2/logging", "/v2/models/nobody/trace/setting"):
        yield f"GET {path}", http(server, ask("GET", path))
        yield f"POST {path}", http(server, ask("POST", path, {}))
    for kind in ("system", "cuda"):
        root = f"/v2/{kind}sharedmemory"
        for path in (f"{root}/status", f"{root}/region/r/status"):
            yield f"GET {path}", http(server, ask("GET", path))
        for path in (
            f"{root}/unregister",
            f"{root}/region/r/unregister",
            f"{root}/region/r/register",
        ):
            yield f"POST {path}", http(server, ask("POST", path, {"key": "k", "byte_size": 4}))


def models(server: Server) -> Iterator[Exchange]:
    of_all = ("", "/ready", "/config", "/stats")
    for name in (
        "total",
        "total/versions/1",
        "photo",
        "spare",
        "broken",
        "nobody",
        "total/versions/3",
    ):
        for suffix in of_all:
            path = f"/v2/models/{name}{suffix}"
            yield f"GET {path}", http(server, ask("GET", path))
    for path in (
        *(
            "kinds",
            "kinds/config",
            "shifted/config",
            "long",
            "nan",
            "finder",
            "finder/config",
            "huge",
        ),
        *(
            "huge/ready",
            "total/versions/01",
            "total/versions/",
            "total/versions/1/ready/",
            "total/what",
        ),
        *(
            "%74otal",
            "tot%00al",
            "p%D0%B0ir",
            "..%2f..%2fetc",
            "..",
            "n" * 300,
            "photo/trace/setting",
        ),
        *("photo/versions/1/trace/setting", "stats/stats", "photo:classify"),
    ):
        yield f"GET /v2/models/{path}"[:80], http(server, ask("GET", f"/v2/models/{path}"))
    for path in ("total", "total/ready", "total/config", "total/stats", "nobody", "nobody/ready"):
        yield f"HEAD /v2/models/{path}", http(server, ask("HEAD", f"/v2/models/{path}"))


# Methods, and the wire


def methods(server: Server) -> Iterator[Exchange]:
    for method, path in (
        *(("OPTIONS", path) for path in ("/", "/v2", INFER, "/v2/repository/index", "*")),
        *(
            ("POST", path)
            for path in ("/", "/v2", "/v2/health/live", "/v2/models/total", "/metrics")
        ),
        *(
            ("GET", path)
            for path in (INFER, "/v2/repository/index", "/v2/repository/models/total/load")
        ),
        *(("PUT", path) for path in ("/v2/models/total", INFER, "/nothing", "/openapi.json")),
        *(("DELETE", "/v2/models/total"), ("PATCH", "/v2"), ("TRACE", "/v2"), ("HEAD", INFER)),
        *(
            ("GET", "/nothing"),
            ("POST", "/nothing"),
            ("HEAD", "/nothing"),
            ("GET", "/v1/models/total"),
        ),
        *(
            ("GET", f"/{'n' * 5000}"),
            ("POST", "/v2/models/total/what"),
            ("POST", "/v2/models/stats"),
        ),
        *(("GET", "/v2/models"), ("GET", "/v2/models/"), ("POST", "/v2/models//infer")),
    ):
        yield f"method {method} {path}"[:70], http(server, ask(method, path))


def other_names(server: Server) -> Iterator[Exchange]:
    """Under a name that is not the server's."""
    for method, path, body in (
        *(("GET", path, None) for path in ("/", "/metrics", "/v2", "/v2/health/live", "/nothing")),
        *(("GET", f"/{path}", None) for path in ("page/events", "v2/models/stats", "openapi.json")),
        *(("HEAD", "/v2", None), ("POST", INFER, GOOD), ("PUT", "/v2", b"body")),
        ("POST", "/v2/models/photo:classify", b"no picture"),
    ):
        for host in ("evil.example:8080", "localhost.evil.example"):
            request = ask(method, path, body, host=host)
            yield f"{method} {path} of {host}", http(server, request)
    for host in ("127.0.0.2:1", "LOCALHOST:80", "10.0.0.7", "[::1]:8080"):
        yield f"live of {host}", http(server, ask("GET", "/v2/health/live", host=host))


def framing(server: Server) -> Iterator[Exchange]:
    live, host = "/v2/health/live", "host: localhost"
    alive = ask("GET", live)
    begun = f"POST {INFER} HTTP/1.1\r\n{host}\r\n".encode()
    for what, data in {
        "no request": b"nonsense\r\n\r\n",
        "no HTTP": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "HTTP/2 by upgrade": ask(
            "GET", live, None, "connection: upgrade, http2-settings", "upgrade: h2c"
        ),
        "a websocket": ask("GET", live, None, "connection: upgrade", "upgrade: websocket"),
        "HTTP/3.7": f"GET {live} HTTP/3.7\r\n{host}\r\n\r\n".encode(),
        "HTTP/0.9": f"GET {live}\r\n\r\n".encode(),
        "method BREW": ask("BREW", "/v2"),
        "method CONNECT": b"CONNECT localhost:1 HTTP/1.1\r\nhost: localhost:1\r\n\r\n",
        "lower case": ask("get", live),
        "a space in the path": ask("GET", "/v2/health/ live"),
        "a byte in the path": b"GET /v2/\xff HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "a whole URL": ask("GET", f"http://other{live}"),
        "an empty line first": b"\r\n" + alive,
        "line feeds alone": alive.replace(b"\r\n", b"\n"),
        "no host": f"GET {live} HTTP/1.1\r\n\r\n".encode(),
        "an empty host": ask("GET", live, host=""),
        "two hosts": ask("GET", live, None, host),
        "HTTP/1.0 without host": f"GET {live} HTTP/1.0\r\n\r\n".encode(),
        "HTTP/1.0": ask("GET", live, version="1.0"),
        "HTTP/1.0 kept": ask("GET", live, None, "connection: keep-alive", version="1.0"),
        "HTTP/1.0 error": ask("GET", "/nothing", version="1.0"),
        "HTTP/1.0 infer": ask("POST", INFER, GOOD, version="1.0"),
        "connection: close": ask("GET", live, None, "connection: close"),
        "infer and close": ask("POST", INFER, GOOD, "connection: close"),
        "a header without a colon": ask("GET", live, None, "what"),
        "a header with a space": ask("GET", live, None, "wh at: 1"),
        "a folded header": ask("GET", live, None, "a: b\r\n c"),
        "a zero in a header": ask("GET", live, None, "a: b\0c"),
        "100 headers": ask("GET", live, None, *(f"h{n}: 1" for n in range(100))),
        "200 headers": ask("GET", live, None, *(f"h{n}: 1" for n in range(200))),
        "a header of 20 KB": ask("GET", live, None, "a: " + "b" * 20_000),
        "a header of 60 KB": ask("GET", live, None, "a: " + "b" * 60_000),
        "a path of 60 KB": ask("GET", "/" + "n" * 60_000),
        "no length": begun + b"\r\n",
        "length x": begun + b"content-length: x\r\n\r\n",
        "length -1": begun + b"content-length: -1\r\n\r\n",
        "two lengths": begun + b"content-length: 3\r\ncontent-length: 4\r\n\r\n{  }",
        "length 99999999": begun + b"content-length: 99999999\r\n\r\n",
        "length 10 to the 30": begun + b"content-length: 1" + b"0" * 30 + b"\r\n\r\n",
        "a length and chunks": begun
        + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "transfer gzip": begun + b"transfer-encoding: gzip\r\n\r\n",
        "transfer gzip, chunked": begun + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "a GET with a body": ask("GET", live, b"body"),
        "a body for no path": ask("POST", "/nothing", b"body"),
        "a long body for no path": ask("POST", "/nothing", bytes(300_000)),
        "a long body for no model": ask("POST", "/v2/models/nobody/infer", bytes(300_000)),
        "a body for another method": ask("PUT", "/v2", b"body"),
    }.items():
        yield f"wire: {what}", http(server, data)
    chunks = begun + b"transfer-encoding: chunked\r\n\r\n"
    for what, data in {
        "chunks": chunked(GOOD[:9], GOOD[9:]),
        "single bytes": chunked(*(GOOD[n : n + 1] for n in range(len(GOOD)))),
        "an extension": b"%x;a=b\r\n%b\r\n0\r\n\r\n" % (len(GOOD), GOOD),
        "a trailer": chunked(GOOD, end=b"0\r\na: b\r\n\r\n"),
        "a wrong size": b"x\r\n{}\r\n0\r\n\r\n",
        "a wrong end": b"1\r\n{}\r\n0\r\n\r\n",
        "nothing": b"0\r\n\r\n",
        "over the limit": chunked(*[b" " * (1 << 16)] * 17),
        "a large size": b"ffffffffffffffffff\r\n{}",
    }.items():
        yield f"chunked: {what}", http(server, chunks + data)
    for what, trailer in {
        "close": b"connection: close",
        "a length": b"content-length: 5",
        "a coding": b"transfer-encoding: gzip",
        "an upgrade": b"connection: upgrade\r\nupgrade: h2c",
        "no field": b"what",
    }.items():
        head = chunks.replace(INFER.encode(), b"/nothing")
        data = head + chunked(GOOD, end=b"0\r\n" + trailer + b"\r\n\r\n") + alive
        yield f"chunked: {what} in a trailer", http(server, data, answers=2)
    for what, path in {"another method": live, "no model": "/v2/models/nobody/infer"}.items():
        with Wire(server) as wire:
            wire.send(chunks.replace(INFER.encode(), path.encode()))
            said = wire.answer()
            wire.send(b"zz\r\n")
            yield f"chunked: a wrong size behind the answer to {what}", [*said, wire.end()]
    expecting = begun + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(GOOD)
    with Wire(server) as wire:
        wire.send(expecting)
        said = wire.answer()
        wire.send(GOOD)
        yield "expects 100", [*said, *wire.answer(), wire.end()]
    refused = expecting.replace(b"/total/", b"/nobody/")
    with Wire(server) as wire:
        wire.send(refused)
        said = wire.answer()
        wire.send(GOOD)
        yield "expects 100 and is refused", [*said, wire.end()]
    yield (
        "expects 100 for too much",
        http(server, begun + b"expect: 100-continue\r\ncontent-length: 99999999\r\n\r\n"),
    )
    yield "expects something else", http(server, ask("POST", INFER, GOOD, "expect: what"))
    yield "expects 100 without a body", http(server, ask("GET", live, None, "expect: 100-continue"))
    wrong = ask("GET", "/nothing")
    for what, requests in {
        "three": [alive, wrong, alive],
        "infer, infer, live": [ask("POST", INFER, GOOD)] * 2 + [alive],
        "an error between": [alive, ask("POST", INFER, b"{"), alive],
        "close between": [alive, ask("GET", live, None, "connection: close"), alive],
        "nonsense behind": [alive, b"nonsense\r\n\r\n"],
        "too large between": [alive, ask("POST", INFER, bytes((1 << 20) + 1)), alive],
        "a refused body between": [ask("POST", "/nothing", bytes(1000)), alive],
    }.items():
        yield f"pipelined: {what}", http(server, b"".join(requests), answers=len(requests))
    yield "in single bytes", http(server, *(alive[n : n + 1] for n in range(len(alive))))
    with Wire(server) as wire:
        wire.send(begun + b"content-length: 100\r\n\r\n{")
        wire.socket.shutdown(1)
        yield "half a body and the end", [*wire.answer(), wire.end()]
    with Wire(server) as wire:
        wire.send(alive)
        wire.socket.shutdown(1)
        yield "a request and the end", [*wire.answer(), wire.end()]
