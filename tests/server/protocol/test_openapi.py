"""/openapi.json is true: bodies and statuses of a running service are those that it names. /docs, HEAD."""

import json
import re
import shutil
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import numpy as np
import onnx
import pytest
import pytest_asyncio
from onnx import TensorProto, helper

from models.compiler import CompileOptions, compile_onnx
from models.compiler.writing.hub_config import HubConfig
from models.embedding import Embedding
from models.graphs.metadata import PREPROCESS as DESCRIBED
from models.graphs.metadata import write_metadata
from models.packs.pack import open_pack
from models.records import plain
from pipeline.planning.smallest import smallest_plan
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES
from server.settings.settings import Settings
from tests.models.detector import square_finder
from tests.models.painter import painter
from tests.models.texts import OPENING, compile_encoder, open_fake, write_files
from tests.server.support import (
    PREPROCESS,
    Packs,
    ServiceUnderTest,
    inputs_for,
    picture,
    request,
    serving,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

Document = dict[str, Any]


def root(name: str) -> onnx.ModelProto:
    """Square roots, which negative numbers do not have."""
    ports = [helper.make_tensor_value_info(port, TensorProto.FLOAT, [1, 2]) for port in "xy"]
    graph = helper.make_graph([helper.make_node("Sqrt", ["x"], ["y"])], name, ports[:1], ports[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="module")
def repository(packs: Packs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that serve, one that is too large for what the others leave, and one that is damaged."""
    folder = tmp_path_factory.mktemp("documented")
    for name in ("idle", "root"):
        onnx.save(root(name), folder / f"{name}.onnx")
    onnx.save(square_finder(True), folder / "finder.onnx")
    described = painter("softmax", size=PREPROCESS.size)
    write_metadata(described, {DESCRIBED: plain(PREPROCESS)})
    onnx.save(described, folder / "painter.onnx")
    found = folder / "repository"
    for name in ("finder", "idle", "painter", "root"):
        compile_onnx(folder / f"{name}.onnx", found / name)
    compile_onnx(packs.sources["twin"], found / "zlarge", CompileOptions(preprocess=PREPROCESS))
    onnx.save(painter("one", size=PREPROCESS.size), folder / "deep.onnx")
    deep = CompileOptions(preprocess=PREPROCESS, configs=(HubConfig("config.json", task="depth"),))
    compile_onnx(folder / "deep.onnx", found / "deep", deep)
    recipe = Embedding(output="logits", normalise=True)
    options = CompileOptions(preprocess=PREPROCESS, embedding=recipe)
    compile_onnx(packs.sources["twin"], found / "seer", options)
    write_files(folder)
    compile_encoder(folder)
    shutil.copytree(packs.repository / "tiny", found / "tiny")
    (found / "damaged" / "1").mkdir(parents=True)
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(repository: Path, packs: Packs) -> AsyncIterator[ServiceUnderTest]:
    values = {
        "repository": repository,
        "threads": 1,
        "max_body": 1 << 20,
        "max_upload": 1 << 20,
        "request_memory": 8 << 20,
    }
    served = [
        open_pack(repository / name)
        for name in ("deep", "encoder", "finder", "idle", "painter", "root", "seer", "tiny")
    ]
    auto = ARCHITECTURES["auto"]
    least = sum(smallest_plan(Program.as_compiled(pack), auto).total_bytes for pack in served)
    settings = Settings.model_validate({**values, "budget": least + (8 << 20)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OPENING, open_fake)
        async with serving(settings) as started:
            await started.client.post("/v2/repository/models/idle/unload")
            yield started


@pytest.fixture(scope="module")
def document(service: ServiceUnderTest) -> Document:
    found: Document = service.app.openapi()
    return found


@dataclass(frozen=True)
class Case:
    """A request and the status that it gets; ``path``: as the document has it."""

    method: str
    path: str
    status: int
    name: str = "tiny"
    sent: dict[str, Any] = field(default_factory=dict)


def image(**options: Any) -> dict[str, Any]:
    return {"content": picture(), "headers": {"content-type": "image/png"}, **options}


BINARY = {"json": request(inputs_for("tiny"), parameters={"binary_data_output": True})}
TINY = {"json": request(inputs_for("tiny"))}
FOREIGN = {"headers": {"origin": "http://evil.example"}}
BIG = {"content": bytes(2 << 20)}
BROTLI = {"content": b"\x1f\x8b", "headers": {"content-encoding": "br"}}
MODEL = "/v2/models/{name}"
EMBEDDINGS = "/v1/embeddings"
INDEX = "/v2/repository/index"
LOAD, UNLOAD, REPLAN, UPLOAD = (
    f"/v2/repository/models/{{name}}/{verb}" for verb in ("load", "unload", "replan", "upload")
)


#: What a request to models gets that do not answer.
ABSENT = (("nobody", 404), ("zlarge", 409), ("idle", 404), ("damaged", 503))


def known(method: str, path: str, good: dict[str, Any], name: str) -> Iterator[Case]:
    yield Case(method, path, 200, name, good)
    for absent, status in ABSENT:
        yield Case(method, path, status, absent, good)


def inference() -> Iterator[Case]:
    roots = request({"x": np.array([[1, -1]], np.float32)})
    for path, good, name in (
        (f"{MODEL}/infer", TINY, "tiny"),
        (f"{MODEL}:classify", image(), "tiny"),
        (f"{MODEL}:classify", {"files": {"photo": picture()}}, "tiny"),
        (f"{MODEL}:detect", image(), "finder"),
        (f"{MODEL}:embed", image(), "seer"),
        (f"{MODEL}:detect", image(params={"draw": "1"}), "finder"),
        (f"{MODEL}:depth", image(), "deep"),
        (f"{MODEL}:depth", image(params={"format": "npy"}), "deep"),
        (f"{MODEL}:segment", image(), "painter"),
        (f"{MODEL}:segment", image(params={"format": "png"}), "painter"),
        (f"{MODEL}:infer", image(), "tiny"),
        (f"{MODEL}:infer", image(params={"binary_data_output": "true"}), "tiny"),
    ):
        yield from known("post", path, good, name)
        yield Case("post", path, 400, name, {"content": b"{"})
        yield Case("post", path, 400, name, {"content": b""})
        yield Case("post", path, 413, name, BIG)
        yield Case("post", path, 415, name, BROTLI)
    for name, status in (("encoder", 200), ("tiny", 400), *ABSENT):
        body = {"json": {"model": name, "input": ["one", "two"]}}
        yield Case("post", EMBEDDINGS, status, sent=body)
    base64 = {"model": "encoder", "input": "one " * 99, "encoding_format": "base64"}
    yield Case("post", EMBEDDINGS, 200, sent={"json": base64})
    yield Case("post", EMBEDDINGS, 400, sent={"content": b"{"})
    yield Case("post", EMBEDDINGS, 413, sent=BIG)
    yield Case("post", EMBEDDINGS, 415, sent=BROTLI)
    yield Case("post", f"{MODEL}:embed", 200, "encoder", {"json": {"text": "one"}})
    yield Case("post", f"{MODEL}:infer", 200, "encoder", {"json": {"text": "one"}})
    yield Case("post", f"{MODEL}/infer", 400, "root", {"json": roots})
    chosen = request(inputs_for("tiny"), id="7", outputs=[{"name": "output"}], parameters={"a": 1})
    yield Case("post", f"{MODEL}/infer", 400, "tiny", {"json": chosen})
    yield Case("post", f"{MODEL}/infer", 200, "tiny", BINARY)
    yield Case("post", f"{MODEL}:classify", 400, "tiny", image(params={"top_k": 0}))
    yield Case("post", f"{MODEL}:classify", 400, "finder", image())
    yield Case("post", f"{MODEL}:detect", 400, "finder", image(params={"score_threshold": "x"}))
    yield Case("post", f"{MODEL}:embed", 400, "seer", image(params={"dimensions": 3}))
    yield Case("post", f"{MODEL}:embed", 400, "tiny", image())
    yield Case("post", f"{MODEL}:segment", 400, "painter", image(params={"size": "x"}))
    yield Case("post", f"{MODEL}:depth", 400, "deep", image(params={"bits": 12}))


def cases() -> Iterator[Case]:
    for path in ("/v2", "/v2/health/live", "/v2/health/ready", "/metrics"):
        yield Case("get", path, 200)
    for path in ("/v2/models/stats", "/v2/trace/setting", "/v2/logging"):
        yield Case("get", path, 200)
    for end in ("", "/ready", "/config", "/stats", "/trace/setting"):
        yield from known("get", f"{MODEL}{end}", {}, "tiny")
    for kind in ("system", "cuda"):
        for place in ("", "/region/{region}"):
            yield Case("get", f"/v2/{kind}sharedmemory{place}/status", 200)
            yield Case("post", f"/v2/{kind}sharedmemory{place}/unregister", 200)
    yield from inference()
    for path, bad in ((INDEX, {"ready": 1}), (LOAD, {"parameters": []}), (UNLOAD, [])):
        yield Case("post", path, 400, sent={"json": bad})
        yield Case("post", path, 413, sent={"content": bytes(65 << 10)})
    yield Case("post", INDEX, 200)
    yield Case("post", INDEX, 200, sent={"json": {"ready": True}})
    for path in (LOAD, UNLOAD):
        yield Case("post", path, 200)
        yield Case("post", path, 403, "tiny", FOREIGN)
        yield Case("post", path, 404, "nobody")
    yield Case("post", LOAD, 200, sent={"json": {"parameters": {"config": '{"name": "tiny"}'}}})
    for limit, status in ((1, 409), (0, 400), (None, 200)):
        yield Case("post", REPLAN, status, sent={"json": {"memory_bytes": limit}})
    yield Case("post", REPLAN, 413, sent=BIG)
    yield Case("post", REPLAN, 403, "tiny", {"json": {"memory_bytes": None}, **FOREIGN})
    for name, status in (("nobody", 404), ("idle", 404), ("damaged", 503)):
        yield Case("post", REPLAN, status, name, {"json": {"memory_bytes": None}})
    yield Case("post", REPLAN, 200, sent={"content": b'{"memory_bytes": 4e9}'})
    yield Case("post", LOAD, 409, "zlarge")
    yield Case("post", LOAD, 503, "damaged")
    yield Case("post", UPLOAD, 400)
    yield Case("post", UPLOAD, 403, "tiny", FOREIGN)
    yield Case("post", UPLOAD, 413, "tiny", BIG)
    yield Case("post", UPLOAD, 415, sent={"headers": {"Content-Encoding": "gzip"}})


def check(document: Document, path: str, method: str, answer: httpx.Response) -> None:
    """Hold ``answer`` against what ``document`` says of its status."""
    responses = document["paths"][path][method]["responses"]
    assert str(answer.status_code) in responses, (path, answer.status_code, answer.text)
    content = responses[str(answer.status_code)]["content"]
    media = answer.headers["content-type"].partition(";")[0]
    assert media in content
    if media == "application/octet-stream":
        length = int(answer.headers["inference-header-content-length"])
        schema = content["application/json"]["schema"]
        validate(document, schema, json.loads(answer.content[:length]))
        return
    if media in ("application/x-npy", "image/png"):
        assert content[media]["schema"]["format"] == "binary"
        return
    found = answer.json() if media == "application/json" else answer.text
    validate(document, content[media]["schema"], found)


def validate(document: Document, schema: Document, found: object) -> None:
    whole = {**schema, "components": document["components"]}
    jsonschema.Draft202012Validator.check_schema(whole)
    jsonschema.Draft202012Validator(whole).validate(found)


def has_versions(path: str) -> bool:
    return path.startswith(MODEL) and "trace" not in path


async def test_every_answer_is_as_documented(service: ServiceUnderTest, document: Document) -> None:
    for case in cases():
        for version in ("", "/versions/1") if has_versions(case.path) else ("",):
            path = case.path.replace("{name}", "{name}" + version.replace("1", "{version}"))
            place = case.path.format(name=case.name + version, region="r")
            answer = await service.client.request(case.method, place, **case.sent)
            assert answer.status_code == case.status, (case, answer.text)
            check(document, path, case.method, answer)


async def test_every_documented_status_is_given(document: Document) -> None:
    """But for those that only a fault, a deadline or the end of the repository brings."""
    rare = {("post", INDEX, 404), ("get", "/v2/health/ready", 503)}
    rare |= {("post", LOAD, 500), ("post", REPLAN, 500)}
    # These take a process that compiles: tests/server/repository/uploads.
    rare |= {("post", UPLOAD, status) for status in (200, 409, 500, 503, 504)}
    inference = ("/infer", ":classify", ":depth", ":detect", ":embed", ":segment", ":infer")
    rare |= {("post", f"{MODEL}{end}", status) for end in inference for status in (500, 504)}
    # A client that stops sending: tests/server/requests/test_stalls.py.
    takes = (INDEX, LOAD, UNLOAD, REPLAN, UPLOAD)
    rare |= {("post", path, 408) for path in takes}
    rare |= {("post", f"{MODEL}{end}", 408) for end in inference}
    rare |= {("post", EMBEDDINGS, status) for status in (408, 500, 504)}
    with_keys = {
        (case.method, case.path, 401) for case in cases() if not case.path.startswith("/v2/health")
    }
    given = {(case.method, case.path, case.status) for case in cases()} | rare | with_keys
    promised = {
        (method, path, int(status))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for status in operation["responses"]
        if "{version}" not in path
    }
    assert promised == given


async def test_rare_answers_are_as_documented(
    packs: Packs, document: Document, tmp_path: Path
) -> None:
    shutil.copytree(packs.repository / "tiny", tmp_path / "packs" / "tiny")
    values = {"repository": tmp_path / "packs", "budget": 64 << 20, "request_timeout": 1e-9}
    async with serving(Settings.model_validate(values)) as service:
        for end, sent, status in (("/infer", TINY, 503), (":classify", image(), 504)):
            answer = await service.client.post(f"/v2/models/tiny{end}", **sent)
            assert answer.status_code == status
            check(document, f"{MODEL}{end}", "post", answer)
        shutil.rmtree(tmp_path / "packs")
        for method, path, status in (
            ("get", "/v2/health/ready", 503),
            ("post", "/v2/repository/index", 404),
        ):
            answer = await service.client.request(method, path)
            assert answer.status_code == status
            check(document, path, method, answer)


async def test_good_requests_are_as_documented(document: Document) -> None:
    for case in cases():
        if case.status == 200 and "inputs" in case.sent.get("json", ()):
            operation = document["paths"][case.path][case.method]
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            validate(document, schema, case.sent["json"])
            wrongs: list[Document] = [{}, {"inputs": [{}]}, {"inputs": {}}]
            for wrong in wrongs:
                with pytest.raises(jsonschema.ValidationError):
                    validate(document, schema, wrong)


async def test_every_example_is_taken(service: ServiceUnderTest, document: Document) -> None:
    sent = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for media, content in operation.get("requestBody", {}).get("content", {}).items():
                if "example" not in content:
                    continue
                assert media == "application/json"
                validate(document, content["schema"], content["example"])
                place = path.format(name="tiny")
                answer = await service.client.request(method, place, json=content["example"])
                assert answer.status_code == 200, (place, answer.text)
                check(document, path, method, answer)
                sent += 1
    assert sent == 4  # the index, load, replan, unload: each other body is of one model
    await service.client.post(LOAD.format(name="tiny"))


async def test_every_reference_leads_somewhere(document: Document) -> None:
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert references == set(document["components"]["schemas"])
    names = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    assert len(set(names)) == len(names)


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attributes if name in ("src", "href")]


async def test_docs_need_no_other_host(service: ServiceUnderTest) -> None:
    page = await service.client.get("/docs")
    assert page.status_code == 200
    assert "://" not in page.text
    scripts = re.findall(r"<script>(.*?)</script>", page.text, re.DOTALL)
    policy = page.headers["content-security-policy"]
    allowed = {b64encode(sha256(each.encode()).digest()).decode() for each in scripts}
    assert len(scripts) == 1
    assert set(re.findall("'sha256-([^']*)'", policy)) == allowed
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives["default-src"] == directives["frame-ancestors"] == "'none'"
    assert "unsafe" not in directives["script-src"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert page.headers["referrer-policy"] == "no-referrer"
    addresses = _Addresses()
    addresses.feed(page.text)
    assert len(addresses.found) == 3
    for address in addresses.found:
        answer = await service.client.get(f"/{address}")
        assert answer.status_code == 200
        assert int(answer.headers["content-length"]) == len(answer.content) > 1000
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert "openapi.json" in page.text
    assert (await service.client.get("/openapi.json")).json() == service.app.openapi()
    for path in ("/docs/redoc.standalone.js", "/docs/..%2fcore.py", "/redoc"):
        assert (await service.client.get(path)).status_code == 404


async def test_head_is_get_without_a_body(service: ServiceUnderTest, document: Document) -> None:
    paths = [path for path, operations in document["paths"].items() if "get" in operations]
    paths += ["/docs", "/docs/swagger-ui.css", "/openapi.json", "/nowhere", MODEL]
    assert len(paths) > 10
    for number, path in enumerate(paths):
        name = "tiny" if number < len(paths) - 1 else "nobody"
        place = path.format(name=name, version="1", region="r")
        get, head = [await service.client.request(method, place) for method in ("GET", "HEAD")]
        assert head.status_code == get.status_code
        assert head.content == b""
        for answer in (get, head):
            answer.headers.pop("x-request-id")
            if path == "/metrics":  # a figure may have grown by a digit
                answer.headers.pop("content-length")
        assert head.headers == get.headers
    assert (await service.client.head(f"{LOAD.format(name='tiny')}")).status_code == 405
