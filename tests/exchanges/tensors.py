"""What the usual server is asked about tensors and images, right and wrong."""

import gzip
import io
import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from tests.exchanges.servers import KINDS, LONG, SIDE, Server
from tests.exchanges.wire import Exchange, ask, chunked, http
from tests.models.detector import SCENES

INFER = "/v2/models/total/infer"
X = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
STEPS = {"name": "steps", "shape": [1, 4], "datatype": "INT8", "data": [1, -1, 0, -128]}
TOTAL: dict[str, Any] = {"inputs": [X, STEPS]}
GOOD = json.dumps(TOTAL).encode()
LENGTH = "inference-header-content-length"


def infer(
    server: Server, document: Any, *headers: str, tail: bytes = b"", path: str = INFER
) -> list[str]:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    more = (f"{LENGTH}: {len(data)}",) if tail else ()
    return http(server, ask("POST", path, data + tail, *more, *headers))


def raw(name: str, size: int) -> dict[str, Any]:
    """Return an input whose ``size`` bytes lie behind the JSON."""
    given = {**(X if name == "x" else STEPS), "parameters": {"binary_data_size": size}}
    return {key: value for key, value in given.items() if key != "data"}


X_RAW, STEPS_RAW = struct.pack("<4f", 1, 2, 3, 4), struct.pack("<4b", 1, -1, 0, -128)
BOTH_RAW = {"inputs": [raw("x", 16), raw("steps", 4)]}


def wanted(**parameters: Any) -> dict[str, Any]:
    return {**TOTAL, "outputs": [{"name": "best"}, {"name": "total", "parameters": parameters}]}


def inference(server: Server) -> Iterator[Exchange]:
    rows = {"inputs": [{**X, "data": [X["data"]]}, {**STEPS, "data": [STEPS["data"]]}]}
    for what, document in {
        "flat": TOTAL,
        "rows": rows,
        "other order": {"inputs": [STEPS, X]},
        "id": {**TOTAL, "id": "seven"},
        "an id of letters": {**TOTAL, "id": "ä€😀"},
        "outputs": {**TOTAL, "outputs": [{"name": "best"}]},
        "no outputs": {**TOTAL, "outputs": []},
        "unknown parameters": {**TOTAL, "parameters": {"what": 1, "priority": 3}},
        "unknown fields": {**TOTAL, "what": 1},
        "a timeout": {**TOTAL, "parameters": {"timeout": 20_000_000}},
        "no timeout": {**TOTAL, "parameters": {"timeout": 0}},
        "classes": wanted(classification=2),
        "more classes": wanted(classification=9),
        "a raw output": wanted(binary_data=True),
        "raw classes": wanted(binary_data=True, classification=2),
        "all outputs raw": {**TOTAL, "parameters": {"binary_data_output": True}},
        "all but one raw": {
            **wanted(binary_data=False),
            "parameters": {"binary_data_output": True},
        },
    }.items():
        yield f"infer: {what}", infer(server, document)
    for what, (head, tail) in {
        "raw": (BOTH_RAW, X_RAW + STEPS_RAW),
        "one raw": ({"inputs": [raw("x", 16), STEPS]}, X_RAW),
        "raw both ways": (
            {**BOTH_RAW, "parameters": {"binary_data_output": True}},
            X_RAW + STEPS_RAW,
        ),
    }.items():
        yield f"infer: {what}", infer(server, head, tail=tail)
    for version in ("1", "2"):
        yield (
            f"infer: version {version}",
            infer(server, TOTAL, path=f"/v2/models/total/versions/{version}/infer"),
        )
    yield "infer: a query", infer(server, TOTAL, path=f"{INFER}?what=1")
    numbers = [
        {"name": k.lower(), "shape": [2], "datatype": k, "data": v} for k, (_, v) in KINDS.items()
    ]
    kinds = "/v2/models/kinds/infer"
    yield "infer: every datatype", infer(server, {"inputs": numbers}, path=kinds)
    everything: dict[str, Any] = {"inputs": numbers, "parameters": {"binary_data_output": True}}
    yield "infer: every datatype raw", infer(server, everything, path=kinds)
    shifted, x = (
        "/v2/models/shifted/infer",
        {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]},
    )
    yield "infer: a default", infer(server, {"inputs": [x]}, path=shifted)
    yield "infer: no default", infer(server, {"inputs": [x, {**x, "name": "by"}]}, path=shifted)
    yield "infer: only the default", infer(server, {"inputs": [{**x, "name": "by"}]}, path=shifted)
    long, values = "/v2/models/long/infer", np.arange(-LONG / 2, LONG / 2, dtype=np.float32)
    asked = ask("POST", long, values.tobytes(), f"{LENGTH}: 0")
    yield "infer: long and raw", http(server, asked)
    yield (
        "infer: long, raw, in chunks",
        http(
            server,
            ask("POST", long, None, f"{LENGTH}: 0", "transfer-encoding: chunked"),
            chunked(*(values[start : start + 9999].tobytes() for start in range(0, LONG, 9999))),
        ),
    )
    document = {
        "inputs": [{"name": "x", "shape": [1, LONG], "datatype": "FP32", "data": values.tolist()}]
    }
    yield "infer: long", infer(server, document, path=long)
    yield (
        "infer: long, gzip in",
        infer(
            server,
            gzip.compress(json.dumps(document).encode()),
            "content-encoding: gzip",
            path=long,
        ),
    )
    for coding in ("gzip", "deflate", "identity", "gzip, deflate", "gzip;q=0", "br", "GZIP", "*"):
        said = infer(server, document, f"accept-encoding: {coding}", path=long)
        yield f"infer: long, accepted {coding}", said
    yield "infer: short, accepted gzip", infer(server, TOTAL, "accept-encoding: gzip")
    for coding, data in {
        "gzip": gzip.compress(GOOD),
        "x-gzip": gzip.compress(GOOD),
        "deflate": zlib.compress(GOOD),
        "identity": GOOD,
        "": GOOD,
    }.items():
        yield f"infer: sent {coding!r}", infer(server, data, f"content-encoding: {coding}")
    body = gzip.compress(json.dumps(BOTH_RAW).encode() + X_RAW + STEPS_RAW)
    size = f"{LENGTH}: {len(json.dumps(BOTH_RAW))}"
    yield "infer: sent raw and gzip", infer(server, body, "content-encoding: gzip", size)
    for name in ("my-id.1", "", "a b", "x" * 200, "ä"):
        asked = ask("POST", INFER, GOOD, f"x-request-id: {name}")
        yield f"infer: x-request-id {name[:9]!r}", http(server, asked)
    scores = {
        "name": "image",
        "shape": [1, 3, SIDE, SIDE],
        "datatype": "FP32",
        "data": [1] * 3 * SIDE**2,
    }
    for name in ("photo", "nan"):
        path = f"/v2/models/{name}/infer"
        yield f"infer: {name}", infer(server, {"inputs": [scores]}, path=path)
        ranked = {"name": "scores", "parameters": {"classification": 2}}
        yield (
            f"infer: {name} classes",
            infer(server, {"inputs": [scores], "outputs": [ranked]}, path=path),
        )
        output = {"name": "scores", "parameters": {"binary_data": True}}
        document = {"inputs": [scores], "outputs": [output]}
        yield f"infer: {name} raw", infer(server, document, path=path)
    for name in ("nobody", "spare", "broken", "huge", "total/versions/9"):
        yield f"infer: {name}", infer(server, TOTAL, path=f"/v2/models/{name}/infer")


def with_x(**fields: Any) -> dict[str, Any]:
    """Return a request whose first input has other fields; one that is None is left out."""
    changed = {key: value for key, value in {**X, **fields}.items() if value is not None}
    return {"inputs": [changed, STEPS]}


def with_steps(*data: Any) -> dict[str, Any]:
    return {"inputs": [X, {**STEPS, "data": data}]}


def wrong_tensors(server: Server) -> Iterator[Exchange]:
    for what, document in {
        "name": with_x(name="y"),
        "the same twice": {"inputs": [X, X, STEPS]},
        "one missing": {"inputs": [X]},
        "too many inputs": {"inputs": [X, STEPS, {**X, "name": "z"}]},
        "no inputs": {"inputs": []},
        "no field inputs": {},
        "inputs an object": {"inputs": {"x": X}},
        "inputs null": {"inputs": None},
        "an input a number": {"inputs": [1]},
        "a list": [],
        "datatype": with_x(datatype="FP64"),
        "unknown datatype": with_x(datatype="float32"),
        "datatype BYTES": with_x(datatype="BYTES"),
        "shape": with_x(shape=[4]),
        "negative shape": with_x(shape=[-1, 4]),
        "fractional shape": with_x(shape=[1.5, 4]),
        "huge shape": with_x(shape=[10**30, 4]),
        "shape of text": with_x(shape="1,4"),
        "shape of many": with_x(shape=[1] * 100),
        "too few values": with_x(data=[1, 2, 3]),
        "too many values": with_x(data=[1, 2, 3, 4, 5]),
        "no values": with_x(data=[]),
        "ragged": with_x(data=[[1, 2], [3, 4, 5]]),
        "strings": with_x(data=["1"] * 4),
        "booleans": with_x(data=[True] * 4),
        "null": with_x(data=[None, 1, 2, 3]),
        "objects": with_x(data=[{}, {}, {}, {}]),
        "text": with_x(data="AAAA"),
        "no data": with_x(data=None),
        "no name": with_x(name=None),
        "no shape": with_x(shape=None),
        "no datatype": with_x(datatype=None),
        "unknown field": with_x(dtype="FP32"),
        "over FP32": with_x(data=[1e39, 0, 0, 0]),
        "over INT8": with_steps(128, 0, 0, 0),
        "a fraction": with_steps(0.5, 0, 0, 0),
        "a whole fraction": with_steps(1.0, 0, 0, 0),
        "over UINT64": with_steps(2**64, 0, 0, 0),
        "a boolean": with_steps(True, 0, 0, 0),
        "unknown output": {**TOTAL, "outputs": [{"name": "none"}]},
        "output twice": {**TOTAL, "outputs": [{"name": "best"}, {"name": "best"}]},
        "output without name": {**TOTAL, "outputs": [{}]},
        "id": {**TOTAL, "id": 7},
        "parameters": {**TOTAL, "parameters": []},
        "timeout of text": {**TOTAL, "parameters": {"timeout": "1"}},
        "negative timeout": {**TOTAL, "parameters": {"timeout": -1}},
        "timeout that has passed": {**TOTAL, "parameters": {"timeout": 1}},
        "priority": {**TOTAL, "parameters": {"priority": 1.5}},
        "no classes": wanted(classification=0),
        "classes of text": wanted(classification="2"),
        "binary_data of a number": wanted(binary_data=1),
        "shared memory": with_x(parameters={"shared_memory_region": "r"}, data=None),
        "data and a size": with_x(parameters={"binary_data_size": 16}),
        "a surrogate": with_x(name="\ud800"),
        "a long name": with_x(name="n" * 100_000),
        "a sequence": {**TOTAL, "parameters": {"sequence_id": 3, "sequence_start": True}},
    }.items():
        yield f"wrong: {what}", infer(server, document)


def wrong_bodies(server: Server) -> Iterator[Exchange]:
    for what, data in {
        "empty": b"",
        "cut off": GOOD[:-1],
        "no JSON": b"not json",
        "no UTF-8": b"\xff\xfe\xfd",
        "UTF-16": GOOD.decode().encode("utf-16"),
        "something behind it": GOOD + b"}",
        "NaN": GOOD.replace(b"[1, 2", b"[NaN, 2"),
        "Infinity": GOOD.replace(b"[1, 2", b"[-Infinity, 2"),
        "1e400": GOOD.replace(b"[1, 2", b"[1e400, 2"),
        "a key twice": b'{"id": "a", "id": "b",' + GOOD[1:],
        "deep": b"[" * 100_000,
        "deep objects": b'{"a":' * 1000,
        "a million values": b'{"inputs":[' + b"1," * 50_000 + b"1]}",
        "over the limit": b" " * (1 << 20) + b" ",
    }.items():
        yield f"body: {what}", infer(server, data)
    for what, (head, tail, headers) in {
        "raw without size": (TOTAL, X_RAW, ()),
        "too little behind it": (BOTH_RAW, X_RAW, ()),
        "too much behind it": (BOTH_RAW, X_RAW + STEPS_RAW + b"1", ()),
        "a wrong size": ({"inputs": [raw("x", 15), STEPS]}, X_RAW, ()),
        "a negative size": ({"inputs": [raw("x", -1), STEPS]}, X_RAW, ()),
        "two lengths": (BOTH_RAW, X_RAW + STEPS_RAW, (f"{LENGTH}: 3",)),
        "no JSON, two inputs": (b"", X_RAW, ()),
    }.items():
        yield f"raw: {what}", infer(server, head, *headers, tail=tail)
    for length in ("x", "-1", "99999", "1" * 30, "", "3"):
        yield f"raw: length {length!r}", infer(server, GOOD, f"{LENGTH}: {length}")
    long = "/v2/models/long/infer"
    for size in (0, 1, 4 * LONG - 1, 4 * LONG + 1):
        asked = ask("POST", long, bytes(size), f"{LENGTH}: 0")
        yield f"raw: {size} bytes of {4 * LONG}", http(server, asked)
    for coding, data in {
        "gzip": GOOD,
        "deflate": gzip.compress(GOOD),
        "br": GOOD,
        "gzip, gzip": gzip.compress(gzip.compress(GOOD)),
        "GZIP": gzip.compress(GOOD)[:-9],
    }.items():
        yield f"encoded: {coding}", infer(server, data, f"content-encoding: {coding}")
    twice = ("content-encoding: gzip", "content-encoding: gzip")
    yield "encoded: twice", infer(server, gzip.compress(GOOD), *twice)
    behind = gzip.compress(GOOD) + b"more"
    yield "encoded: more behind it", infer(server, behind, "content-encoding: gzip")
    bomb = gzip.compress(b" " * (2 << 20))
    yield "encoded: opens to too much", infer(server, bomb, "content-encoding: gzip")


# Images


def picture(kind: str = "PNG", side: int = SIDE, mode: str = "RGB") -> bytes:
    pixels = (np.arange(side * side * 3) % 251).astype(np.uint8).reshape(side, side, 3)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


def scene_of(name: str) -> bytes:
    file = io.BytesIO()
    SCENES[name].image().save(file, "PNG")
    return file.getvalue()


def form(*parts: tuple[str, bytes]) -> tuple[bytes, str]:
    """Return a form of these parts, a disposition and a body each, and its header."""
    made = [
        b"--edge\r\ncontent-disposition: form-data; %b\r\n\r\n%b\r\n" % (d.encode(), b)
        for d, b in parts
    ]
    return b"".join(made) + b"--edge--\r\n", "content-type: multipart/form-data; boundary=edge"


def images(server: Server) -> Iterator[Exchange]:
    classify, detect, image = "/v2/models/photo:classify", "/v2/models/finder:detect", picture()
    scene = scene_of("tiny")
    for query in (
        "",
        "?top_k=2",
        "?top_k=99",
        "?top_k=0",
        "?top_k=-1",
        "?top_k=x",
        "?top_k=",
        "?what=1",
    ):
        yield f"classify{query}", http(server, ask("POST", classify + query, image))
    yield (
        "classify: version",
        http(server, ask("POST", "/v2/models/photo/versions/1:classify", image)),
    )
    for what, data in {
        "BMP": picture("BMP"),
        "grey": picture(mode="L"),
        "empty": b"",
        "no image": b"no image",
        "cut off": image[: len(image) // 2],
        "too many pixels": picture(side=101),
        "over the limit": bytes((1 << 20) + 1),
    }.items():
        yield f"classify: {what}", http(server, ask("POST", classify, data))
    for what, (data, header) in {
        "form": form(('name="image"; filename="a"', image)),
        "form with a field": form(('name="a"', b"b"), ('name="image"; filename="a"', image)),
        "form without a file": form(('name="a"', image)),
        "two files": form(*[('name="image"; filename="a"', image)] * 2),
        "empty form": form(),
        "no form": (image, "content-type: multipart/form-data"),
        "form of another edge": (image, "content-type: multipart/form-data; boundary=other"),
        "a media type": (image, "content-type: image/x"),
        "gzip": (gzip.compress(image), "content-encoding: gzip"),
        "br": (image, "content-encoding: br"),
    }.items():
        yield f"classify: {what}", http(server, ask("POST", classify, data, header))
    data = ask("POST", classify, None, "transfer-encoding: chunked") + chunked(
        image[:30], image[30:]
    )
    yield "classify: in chunks", http(server, data)
    for name in ("total", "nan", "finder", "spare", "nobody", "broken"):
        yield f"classify: {name}", http(server, ask("POST", f"/v2/models/{name}:classify", image))
    for query in (
        *(
            "",
            "?score_threshold=0.75",
            "?max_detections=1",
            "?score_threshold=2",
            "?clip=no",
            "?clip=x",
        ),
        *("?iou_threshold=nan", "?max_detections=0", "?score_threshold=0&iou_threshold=0"),
    ):
        yield f"detect{query}", http(server, ask("POST", detect + query, scene))
    yield "detect: too many pixels", http(server, ask("POST", detect, scene_of("wide")))
    for name in ("photo", "total", "finder/versions/1", "finder/versions/2"):
        yield f"detect: {name}", http(server, ask("POST", f"/v2/models/{name}:detect", scene))
    for what in ("photo:infer", "photo:infer?binary_data_output=true", "total:infer"):
        yield f"picture: {what}", http(server, ask("POST", f"/v2/models/{what}", image))
    for name in ("photo", "finder", "nobody"):
        yield f"segment: {name}", http(server, ask("POST", f"/v2/models/{name}:segment", image))
    for action in ("what", "", "classify:detect"):
        yield f"action {action!r}", http(server, ask("POST", f"/v2/models/photo:{action}", image))
