"""What four other servers are asked: with TLS and keys, on a Unix socket, held up, and with short times."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.exchanges.over_grpc import asking, load, none, stream_that_is_silent
from tests.exchanges.repository import ROOT, uploads
from tests.exchanges.servers import PLACES, Server, until
from tests.exchanges.tensors import GOOD, INFER, TOTAL, picture, scene_of
from tests.exchanges.wire import Exchange, Wire, ask, call, closed, file_of_page, http, names, short

#: Seconds that a request has which is late.
LATE = 3


def keys(server: Server) -> Iterator[Exchange]:
    """Over TLS, and with keys."""
    known = {role: f"authorization: Bearer {key}" for role, key in server.keys.items()}
    given: dict[str, tuple[str, ...]] = {
        "none": (),
        "wrong": ("authorization: Bearer lsk_wrong",),
        "two": (known["infer"], known["admin"]),
        "twice": (known["infer"], known["infer"]),
        "basic": ("authorization: Basic YTpi",),
        "empty": ("authorization:",),
        "bare": (f"authorization: {server.keys['infer']}",),
        "small letters": (known["infer"].replace("Bearer", "bearer"),),
        "infer": (known["infer"],),
        "admin": (known["admin"],),
    }
    for who, headers in given.items():
        yield f"/v2 with {who}", http(server, ask("GET", "/v2", None, *headers))
    for who in ("none", "infer", "admin"):
        headers = given[who]
        for method, path in (
            *(
                ("GET", path)
                for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/total")
            ),
            *(
                ("GET", path)
                for path in ("/nothing", "/openapi.json?x", "/page/models/photo/frontierx")
            ),
            *(("OPTIONS", "/v2"), ("HEAD", "/v2"), ("POST", f"{ROOT}/index"), ("POST", INFER)),
            *(("POST", f"{ROOT}/models/total/{verb}") for verb in ("load", "replan", "upload")),
            *(("POST", f"{ROOT}/models/photo/unload"), ("POST", f"{ROOT}/models/nobody/load")),
        ):
            view: Any = (lambda _: "") if "openapi" in path else short
            body: Any = (
                GOOD
                if path == INFER
                else {}
                if path.endswith("load") and "up" not in path
                else None
            )
            asked = ask(method, path, body, *headers)
            yield f"{method} {path} with {who}", http(server, asked, view=view)
    yield "/ without a key", http(server, ask("GET", "/"), view=file_of_page)
    yield "page file without a key", http(server, ask("GET", "/page/files/x"))
    yield "page events without a key", http(server, ask("GET", "/page/events"))
    yield "/metrics without a key", http(server, ask("GET", "/metrics"), view=names)
    yield "infer without a key and long", http(server, ask("POST", INFER, bytes(300_000)))
    expects = ask("POST", INFER, None, "expect: 100-continue", "content-length: 100")
    with Wire(server) as wire:
        wire.send(expects)
        yield "infer without a key and expecting", wire.answer()
    yield (
        "load of a page with a key",
        http(
            server,
            ask("POST", f"{ROOT}/models/total/load", {}, known["admin"], "origin: http://evil"),
        ),
    )
    yield "a redirect", http(server, ask("GET", "/v2/", None, known["infer"]))
    yield (
        "pipelined",
        http(server, ask("GET", "/v2") + ask("GET", "/v2", None, known["infer"]), answers=2),
    )
    with server.connect(plain=True) as plain:
        plain.sendall(ask("GET", "/v2/health/live"))
        yield "without TLS", [closed(plain)]
    with Wire(server) as wire:
        found: Any = wire.socket
        yield "TLS", [str(found.version()), str(found.selected_alpn_protocol())]
    with contextlib.closing(server.channel()) as channel:
        for who in ("none", "wrong", "infer", "admin"):
            pairs = [("authorization", each.split(": ")[1]) for each in given[who]]
            for method, asked in (
                *((name, none(name)) for name in ("ServerLive", "ServerReady", "ServerMetadata")),
                *(("ModelInfer", asking()), ("RepositoryModelLoad", load("total"))),
            ):
                said = call(channel, method, asked, metadata=pairs)
                yield f"gRPC {method} with {who}", said


def unix(server: Server) -> Iterator[Exchange]:
    """Over a Unix socket, which trusted proxies have; uploads are asked here."""
    for what, asked in {
        "live": ask("GET", "/v2/health/live"),
        "HEAD": ask("HEAD", "/v2"),
        "infer": ask("POST", INFER, GOOD),
        "infer for another host": ask("POST", INFER, GOOD, host="evil.example"),
        "detect": ask("POST", "/v2/models/finder:detect", scene_of("tiny")),
        "load": ask("POST", f"{ROOT}/models/total/load"),
        "load for another host": ask("POST", f"{ROOT}/models/total/load", host="evil.example"),
        "load by a proxy": ask(
            "POST", f"{ROOT}/models/total/load", None, "x-forwarded-for: 10.0.0.7"
        ),
        "load by forwarded": ask(
            "POST", f"{ROOT}/models/total/load", None, "forwarded: for=127.0.0.1"
        ),
        "infer by a proxy": ask("POST", INFER, GOOD, "x-forwarded-for: 10.0.0.7, 10.0.0.8"),
        "infer by a wrong proxy": ask("POST", INFER, GOOD, "x-forwarded-for: what"),
        "a redirect": ask("GET", "/v2/", None, "x-forwarded-proto: https"),
        "no request": b"nonsense\r\n\r\n",
        "too much": ask("POST", INFER, None, "content-length: 99999999"),
        "HTTP/1.0": ask("GET", "/v2/health/live", version="1.0"),
    }.items():
        yield what, http(server, asked)
    with contextlib.closing(server.channel()) as channel:
        yield "gRPC load", call(channel, "RepositoryModelLoad", load("total"))
        pairs = [("x-forwarded-for", "10.0.0.7")]
        yield (
            "gRPC load by a proxy",
            call(channel, "RepositoryModelLoad", load("total"), metadata=pairs),
        )
    yield from uploads(server)


def held(server: Server) -> Iterator[Exchange]:
    """With kernels that wait: what is full, and what is late."""
    bad, weighted = server.folder / "bad", f"{ROOT}/models/weighted"
    x = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [1] * 64}
    asked = ask("POST", "/v2/models/weighted/infer", {"inputs": [x]})
    with Wire(server) as wire:  # in so little memory that each answer reads
        wire.send(ask("POST", f"{weighted}/replan", {"memory_bytes": 1}))
        least = re.findall(r"\((\d+) bytes\)", "".join(wire.answer(view=bytes.decode)))
        wire.send(ask("POST", f"{weighted}/replan", {"memory_bytes": int(least[0])}))
        yield "with reads", [wire.answer()[0], *http(server, asked)]
    bad.touch()
    yield "a failed read", http(server, asked)
    for path in ("", "/ready", "/config", "/stats"):
        yield f"after that {path}", http(server, ask("GET", f"/v2/models/weighted{path}"))
    yield "infer after that", http(server, asked)
    yield "load after that", http(server, ask("POST", f"{weighted}/load"))
    yield "index after that", http(server, ask("POST", f"{ROOT}/index"), view=of_weighted)
    with contextlib.closing(server.channel()) as channel:
        yield "gRPC after that", call(channel, "ModelInfer", asking("weighted"))
        bad.unlink()
        yield "load again", http(server, ask("POST", f"{weighted}/load"))
        yield "and infer", http(server, asked)
        late = ask("POST", INFER, {**TOTAL, "parameters": {"timeout": LATE * 10**6}})
        with Wire(server) as wire:
            with holding(server) as reached:
                wire.send(late, reached, lambda: time.sleep(LATE))
            yield "late", [*wire.answer(), wire.end()]
        with ThreadPoolExecutor(1) as pool:
            with holding(server) as reached:
                asked_late = asking(version="1", timeout=LATE * 10**6)
                said = pool.submit(call, channel, "ModelInfer", asked_late)
                reached()
                time.sleep(LATE)
            yield "gRPC late", said.result()
        with Wire(server) as first, Wire(server) as second:
            with holding(server) as reached:
                first.send(ask("POST", INFER, GOOD), reached)
                second.send(ask("POST", INFER, GOOD))
                until(lambda: waiting(server) == 1)
                yield "full", http(server, ask("POST", INFER, GOOD))
                yield "full twice", http(server, ask("POST", INFER, GOOD) * 2, answers=2)
                yield "full and HTTP/1.0", http(server, ask("POST", INFER, GOOD, version="1.0"))
                yield "full and long", http(server, ask("POST", INFER, bytes(300_000)))
                yield (
                    "full and in chunks",
                    http(
                        server, ask("POST", INFER, None, "transfer-encoding: chunked"), b"0\r\n\r\n"
                    ),
                )
                yield "full and wrong", http(server, ask("POST", INFER, b"{"))
                yield "full and live", http(server, ask("GET", "/v2/health/live"))
                yield "gRPC full", call(channel, "ModelInfer", asking())
                yield "gRPC stream full", call(channel, "ModelStreamInfer", asking())
            yield "the first", [*first.answer(), first.end()]
            yield "the second", [*second.answer(), second.end()]
        with Wire(server) as wire:
            with holding(server) as reached:
                wire.send(ask("POST", INFER, GOOD), reached, ask("GET", "/v2/health/live") * 18)
            answers = [line for _ in range(19) for line in wire.answer()]
            yield "many pipelined", [*answers, wire.end()]
    with contextlib.ExitStack() as stack:
        with holding(server) as reached:
            first = stack.enter_context(Wire(server))
            first.send(ask("POST", INFER, GOOD), reached)
            for _ in range(PLACES - 1):
                watching = stack.enter_context(Wire(server))
                watching.send(ask("GET", "/page/events"))
                watching.first_events()
            yield "no place", http(server, ask("GET", "/v2/health/live"))
        yield "who has one", first.answer()


@contextlib.contextmanager
def holding(server: Server) -> Iterator[Callable[[], None]]:
    """Hold kernels up, once both versions have answered: nothing runs then that would come to the gate."""
    for version in ("1", "2"):
        said = http(server, ask("POST", f"/v2/models/total/versions/{version}/infer", GOOD))
        assert " 200 " in said[0], said
    with server.held() as reached:
        yield reached


def of_weighted(body: bytes) -> str:
    return short(b"".join(re.findall(rb'{"name":"weighted".*?}', body)))


def waiting(server: Server) -> float:
    """Return how many requests wait in line."""
    with Wire(server) as wire:
        wire.send(ask("GET", "/metrics"))
        said = "\n".join(wire.answer(view=bytes.decode))
    return sum(map(float, re.findall(r"(?m)^layerstream_queue_length{.*} (.*)$", said)))


def short_times(server: Server) -> Iterator[Exchange]:
    """With two seconds for everything, and a repository that does not change."""
    for verb in ("load", "unload", "replan", "upload"):
        asked = ask("POST", f"{ROOT}/models/total/{verb}", {"memory_bytes": None})
        yield f"{verb} of what stays", http(server, asked)
    image, begun = picture(), f"POST {INFER} HTTP/1.1\r\nhost: localhost\r\n"
    with contextlib.closing(server.channel()) as channel:
        for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
            yield f"gRPC {method} of what stays", call(channel, method, load("total", method))
        live = ask("GET", "/v2/health/live")
        silent: dict[str, tuple[bytes, ...]] = {
            "nothing": (),
            "half a header": (live[:20],),
            "half a second header": (live, live[:20]),
            "nothing more": (live,),
            "half a body": (f"{begun}content-length: 100\r\n\r\n{{".encode(),),
            "half a chunk": (f"{begun}transfer-encoding: chunked\r\n\r\n9\r\n{{".encode(),),
            "half a picture": (ask("POST", "/v2/models/photo:classify", image)[:-9],),
            "half a body for nobody": (ask("POST", "/nothing", GOOD)[:-9],),
            "half an index": (ask("POST", f"{ROOT}/index", {"ready": True})[:-3],),
            "no body that is expected": (
                f"{begun}content-length: 9\r\nexpect: 100-continue\r\n\r\n".encode(),
            ),
        }

        def ended(parts: tuple[bytes, ...]) -> list[str]:
            with Wire(server) as wire:
                wire.send(*parts)
                return closed(wire.socket).split("\r\n")

        work: dict[str, Callable[[], list[str]]] = {
            f"silent after {what}": lambda parts=parts: ended(parts)  # type: ignore[misc]
            for what, parts in silent.items()
        }
        work["gRPC stream that is silent"] = lambda: stream_that_is_silent(channel)
        with ThreadPoolExecutor(len(work)) as pool:
            futures = {what: pool.submit(each) for what, each in work.items()}
            for what, future in futures.items():
                yield what, future.result()
