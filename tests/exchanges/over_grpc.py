"""What is asked over gRPC: every method, and what can be wrong with a message."""

import contextlib
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
from google.protobuf.message import Message

from server.grpc.messages import inference_pb2 as messages
from tests.exchanges.servers import KINDS, LIMIT_SECONDS, LONG, SIDE, Server
from tests.exchanges.wire import SERVICE, Exchange, call, told

X, STEPS = struct.pack("<4f", 1, 2, 3, 4), struct.pack("<4b", 1, -1, 0, -128)


def none(method: str) -> Any:
    """Return the message of ``method`` without a field."""
    return getattr(messages, f"{method}Request")()


def load(name: str, method: str = "RepositoryModelLoad", **parameters: Any) -> Any:
    found = getattr(messages, f"{method}Request")(model_name=name)
    for key, value in parameters.items():
        field = {bool: "bool_param", int: "int64_param", str: "string_param"}[type(value)]
        setattr(found.parameters[key], field, value)
    return found


def asking(
    model: str = "total",
    raw: bool = True,
    change: Callable[[Any], object] = lambda _: None,
    **fields: Any,
) -> Any:
    """Return a request for inference; what is no field of it is a parameter."""
    names = {"id", "version"}
    found = messages.ModelInferRequest(
        model_name=model, model_version=fields.get("version", ""), id=fields.get("id", "")
    )
    x = found.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    steps = found.inputs.add(name="steps", datatype="INT8", shape=[1, 4])
    if raw:
        found.raw_input_contents.extend([X, STEPS])
    else:
        x.contents.fp32_contents.extend([1, 2, 3, 4])
        steps.contents.int_contents.extend([1, -1, 0, -128])
    for key, value in fields.items():
        if key not in names:
            field = {
                int: "int64_param",
                str: "string_param",
                float: "double_param",
                bool: "bool_param",
            }
            setattr(found.parameters[key], field[type(value)], value)
    change(found)
    return found


def one(model: str, name: str, array: Any) -> Any:
    """Return a request with one raw input of floats."""
    found = messages.ModelInferRequest(model_name=model)
    found.inputs.add(name=name, datatype="FP32", shape=array.shape)
    found.raw_input_contents.append(array.astype(np.float32).tobytes())
    return found


def over_grpc(server: Server) -> Iterator[Exchange]:
    with contextlib.closing(server.channel()) as channel:
        for room in (about, inference, wrong, others, streams, repository):
            for what, said in room(channel):
                yield f"gRPC {what}", said


def about(channel: grpc.Channel) -> Iterator[Exchange]:
    for method in ("ServerLive", "ServerReady", "ServerMetadata"):
        yield method, call(channel, method, none(method))
    for method in ("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"):
        kind = getattr(messages, f"{method}Request")
        for name, version in (
            *(("total", ""), ("total", "1"), ("total", "3"), ("spare", ""), ("nobody", "")),
            *(("huge", ""), ("kinds", "1"), ("", "")),
        ):
            said = call(channel, method, kind(name=name, version=version))
            yield f"{method} {name!r} {version!r}", said


def inference(channel: grpc.Channel) -> Iterator[Exchange]:
    def outputs(request: Any) -> None:
        request.outputs.add(name="best")
        request.outputs.add(name="total").parameters["classification"].int64_param = 2

    for what, asked in {
        "raw": asking(),
        "contents": asking(raw=False),
        "id": asking(id="seven"),
        "version": asking(version="1"),
        "outputs": asking(change=outputs),
        "unknown parameter": asking(what=1),
        "timeout": asking(timeout=20_000_000),
        "priority": asking(priority=3),
        "a size": asking(change=lambda r: sized(r.inputs[0])),
        "long": one("long", "x", np.arange(LONG).reshape(1, -1) - 9),
        "a default": one("shifted", "x", np.array([1, 2])),
        "photo": one("photo", "image", np.ones((1, 3, SIDE, SIDE))),
        "nan": one("nan", "image", np.ones((1, 3, SIDE, SIDE))),
    }.items():
        yield f"infer: {what}", call(channel, "ModelInfer", asked)
    kinds = messages.ModelInferRequest(model_name="kinds")
    for name, (_, values) in KINDS.items():
        kinds.inputs.add(name=name.lower(), datatype=name, shape=[2])
        kinds.raw_input_contents.append(packed(name, values))
    yield "infer: every datatype", call(channel, "ModelInfer", kinds)
    pairs = [("x-request-id", "my-id.1")]
    yield "infer: x-request-id", call(channel, "ModelInfer", asking(), metadata=pairs)
    pairs = [("x-request-id", "a b")]
    yield "infer: a wrong x-request-id", call(channel, "ModelInfer", asking(), metadata=pairs)


def sized(tensor: Any) -> None:
    tensor.parameters["binary_data_size"].int64_param = 16


def packed(name: str, values: list[Any]) -> bytes:
    """Return raw values of a datatype."""
    if name == "BYTES":
        data = [value.encode() for value in values]
        return b"".join(struct.pack("<I", len(each)) + each for each in data)
    kind = name.lower().replace("fp", "float")
    return np.array(values, kind).tobytes()


def wrong(channel: grpc.Channel) -> Iterator[Exchange]:
    def changed(place: str, value: Any) -> Callable[[Any], None]:
        return lambda request: setattr(request.inputs[0], place, value)

    def shared(request: Any) -> None:
        request.inputs[0].parameters["shared_memory_region"].string_param = "r"

    for what, asked in {
        "nobody": asking("nobody"),
        "no name": asking(""),
        "a long name": asking("n" * 300),
        "spare": asking("spare"),
        "broken": asking("broken"),
        "huge": asking("huge"),
        "version": asking(version="9"),
        "empty": messages.ModelInferRequest(model_name="total"),
        "input": asking(change=changed("name", "y")),
        "datatype": asking(change=changed("datatype", "FP16")),
        "unknown datatype": asking(change=changed("datatype", "float32")),
        "shape": asking(change=lambda r: r.inputs[0].shape.append(1)),
        "negative shape": asking(change=lambda r: r.inputs[0].shape.__setitem__(0, -1)),
        "too short": asking(change=lambda r: r.raw_input_contents.__setitem__(1, STEPS[:-1])),
        "too long": asking(change=lambda r: r.raw_input_contents.__setitem__(1, STEPS + b"1")),
        "one raw": asking(change=lambda r: r.raw_input_contents.pop()),
        "raw and contents": asking(change=lambda r: r.inputs[0].contents.fp32_contents.append(1)),
        "over INT8": asking(
            raw=False, change=lambda r: r.inputs[1].contents.int_contents.__setitem__(0, 128)
        ),
        "too few contents": asking(
            raw=False, change=lambda r: r.inputs[1].contents.int_contents.pop()
        ),
        "other contents": asking(
            raw=False, change=lambda r: r.inputs[0].contents.int_contents.append(1)
        ),
        "output": asking(change=lambda r: r.outputs.add(name="none")),
        "output twice": asking(change=lambda r: [r.outputs.add(name="best") for _ in range(2)]),
        "timeout": asking(timeout=-1),
        "timeout of text": asking(timeout="1"),
        "timeout that has passed": asking(timeout=1),
        "priority": asking(priority=1.5),
        "shared memory": asking(change=shared),
        "no message": b"\xff" * 40,
        "cut off": b"\x3a\x7f",
        "no text": b"\x0a\x01\xff",
        "many fields": b"\x18\x01" * 5000,
        "over the limit": messages.ModelInferRequest(raw_input_contents=[bytes((1 << 20) + 9)]),
    }.items():
        yield f"wrong: {what}", call(channel, "ModelInfer", asked)
    yield "wrong: two messages", call(channel, "ModelInfer", asking(), asking())
    yield "wrong: no message at all", call(channel, "ModelInfer")
    yield "compressed", call(channel, "ModelInfer", asking(), compression=grpc.Compression.Gzip)


def others(channel: grpc.Channel) -> Iterator[Exchange]:
    for method in (
        *("TraceSetting", "LogSettings", "SystemSharedMemoryStatus", "SystemSharedMemoryRegister"),
        *("CudaSharedMemoryStatus", "Nothing", "modelInfer"),
    ):
        yield method, call(channel, method, b"")
    for method in (
        "ServerLive",
        "ModelReady",
        "ModelStatistics",
        "RepositoryIndex",
        "RepositoryModelLoad",
    ):
        yield f"{method} of no message", call(channel, method, b"\xff")
    yield "ServerLive without a message", call(channel, "ServerLive")
    pairs = [("a", "b" * 40_000)]
    yield "metadata of 40 KB", call(channel, "ServerLive", none("ServerLive"), metadata=pairs)
    # The client's deadline ends it, or the server does, which sends metadata, too.
    said = call(channel, "ModelInfer", asking(), seconds=0)
    yield "a deadline that has passed", [each.split()[0] for each in said if "DEADLINE" in each]


def streams(channel: grpc.Channel) -> Iterator[Exchange]:
    good, bad = asking(id="a"), asking("nobody")
    for what, asked in {
        "nothing": [],
        "one": [good],
        "three": [good, bad, good],
        "other models": [good, asking("spare"), asking("broken"), asking(version="9")],
        "no message": [b"\xff\xff", good],
        "wrong": [asking(change=lambda r: r.inputs.pop()), good],
    }.items():
        yield f"stream: {what}", call(channel, "ModelStreamInfer", *asked)


def stream_that_is_silent(channel: grpc.Channel) -> list[str]:
    """Ask once and say nothing more."""
    over = threading.Event()

    def messages_of() -> Iterator[bytes]:
        yield asking(id="a").SerializeToString()
        over.wait(LIMIT_SECONDS)

    ask_for: Any = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
    begun = ask_for(messages_of(), timeout=LIMIT_SECONDS)
    try:
        return list(told("ModelStreamInfer", begun))
    finally:
        over.set()


def repository(channel: grpc.Channel) -> Iterator[Exchange]:
    asked: dict[str, tuple[str, Message]] = {
        "index": ("RepositoryIndex", none("RepositoryIndex")),
        "index of those that serve": (
            "RepositoryIndex",
            messages.RepositoryIndexRequest(ready=True),
        ),
        "load": ("RepositoryModelLoad", load("spare")),
        "load again": ("RepositoryModelLoad", load("spare")),
        "load with a config": ("RepositoryModelLoad", load("spare", config='{"name": "spare"}')),
        "load with a wrong config": ("RepositoryModelLoad", load("spare", config="{")),
        "load with a file": ("RepositoryModelLoad", load("spare", **{"file:1/model.onnx": "A"})),
        "load nobody": ("RepositoryModelLoad", load("nobody")),
        "load no name": ("RepositoryModelLoad", load("")),
        "load broken": ("RepositoryModelLoad", load("broken")),
        "load huge": ("RepositoryModelLoad", load("huge")),
    }
    for name in ("spare", "again", "nobody", "broken", "weighted"):
        model = "spare" if name == "again" else name
        asked[f"unload {name}"] = ("RepositoryModelUnload", load(model, "RepositoryModelUnload"))
    wrong = load("spare", "RepositoryModelUnload", unload_dependents="x")
    asked["unload with a wrong parameter"] = ("RepositoryModelUnload", wrong)
    for what, (method, message) in asked.items():
        yield what, call(channel, method, message)
    for name, value in (("x-forwarded-for", "10.0.0.7"), ("origin", "http://evil.example")):
        said = call(channel, "RepositoryModelLoad", load("spare"), metadata=[(name, value)])
        yield f"load with {name}", said
    for method in ("ModelMetadata", "ModelConfig", "ModelReady", "ModelStatistics"):
        kind = getattr(messages, f"{method}Request")
        yield f"{method} of an unloaded one", call(channel, method, kind(name="spare"))
    yield "infer of an unloaded one", call(channel, "ModelInfer", asking("spare"))
