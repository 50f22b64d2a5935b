"""The peer: what one would write without Layerstream. FastAPI and a runtime that opens the model's file.

Plain, it parses JSON and runs the model on the event loop. As a service, it validates with pydantic, runs
the model on a thread and counts for Prometheus.

Run as ``python -m benchmarks.children.peer_server MODEL.onnx PORT [--runtime RUNTIME] [--style service]``.
"""

import argparse
import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from numpy.typing import NDArray
from prometheus_client import CONTENT_TYPE_LATEST, Counter, Histogram, generate_latest
from pydantic import BaseModel

_M_MMAP_THRESHOLD = -3  # of malloc.h

#: Gives the first output for an input, by its name.
Run = Callable[[str, NDArray[np.float32]], NDArray[np.float32]]


def onnxruntime(path: str) -> Run:
    """Open ``path`` with the defaults: all weights in memory."""
    import onnxruntime as ort

    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda name, array: session.run(None, {name: array})[0]


def onnxruntime_mapped(path: str) -> Run:
    """Open the model.onnx of a pack: ONNX Runtime maps the weights that lie in a file of their own.

    Set up for the least memory, which on a quiet machine costs it no time: nothing is optimised again (a
    pack is), weights are not copied into another layout (matrices would be), neither arena nor memory
    pattern keeps activations, and freed memory goes back to the kernel (glibc would keep 25 MB a request of
    VGG-19).
    """
    import ctypes

    import onnxruntime as ort

    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda name, array: session.run(None, {name: array})[0]


def openvino(path: str) -> Run:
    """Compile ``path`` for the lowest delay in float32; OpenVINO holds all weights in its own layout."""
    import openvino as ov

    properties = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = ov.Core().compile_model(path, "CPU", properties).create_infer_request()
    return lambda name, array: np.asarray(request.infer({name: array})[0])


RUNTIMES = {
    "onnxruntime": onnxruntime,
    "onnxruntime-mapped": onnxruntime_mapped,
    "openvino": openvino,
}


def create_app(run: Run) -> FastAPI:
    """Return an application with one infer endpoint for the model behind ``run``."""
    app = FastAPI()

    @app.get("/v2/health/ready")
    def ready() -> dict[str, bool]:
        return {"ready": True}

    @app.post("/v2/models/{name}/infer")
    async def infer(name: str, request: Request) -> dict[str, Any]:
        tensor = (await request.json())["inputs"][0]
        array = np.asarray(tensor["data"], np.float32).reshape(tensor["shape"])
        result = run(tensor["name"], array)
        output = {"name": "output", "datatype": "FP32", "shape": list(result.shape)}
        return {"model_name": name, "outputs": [{**output, "data": result.ravel().tolist()}]}

    return app


class PeerTensor(BaseModel):
    """A tensor of the Open Inference Protocol."""

    name: str
    datatype: Literal["FP32"]
    shape: list[int]
    data: list[float]


class PeerRequest(BaseModel):
    """The tensors of a request."""

    id: str | None = None
    inputs: list[PeerTensor]


class PeerAnswer(BaseModel):
    """The tensors of an answer."""

    model_name: str
    id: str | None = None
    outputs: list[PeerTensor]


def create_service(run: Run) -> FastAPI:
    """Return an application that validates, computes on a thread and has metrics."""
    app = FastAPI()
    threads = ThreadPoolExecutor(1)
    requests = Counter("requests", "Requests by status", ["model", "status"])
    delays = Histogram("request_seconds", "Delay of a request", ["model"])

    @app.get("/v2/health/ready")
    def ready() -> dict[str, bool]:
        return {"ready": True}

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    @app.post("/v2/models/{name}/infer")
    async def infer(name: str, request: PeerRequest) -> PeerAnswer:
        started_at = time.perf_counter()
        tensor = request.inputs[0]
        try:
            array = np.asarray(tensor.data, np.float32).reshape(tensor.shape)
        except ValueError as exc:
            requests.labels(name, "400").inc()
            raise HTTPException(400, str(exc)) from exc
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(threads, run, tensor.name, array)
        output = PeerTensor(
            name="output", datatype="FP32", shape=list(result.shape), data=result.ravel().tolist()
        )
        delays.labels(name).observe(time.perf_counter() - started_at)
        requests.labels(name, "200").inc()
        return PeerAnswer(model_name=name, id=request.id, outputs=[output])

    return app


STYLES = {"plain": create_app, "service": create_service}


def main() -> None:
    """Open the model and serve it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--runtime", choices=RUNTIMES, default="onnxruntime")
    parser.add_argument("--style", choices=STYLES, default="plain")
    options = parser.parse_args()
    app = STYLES[options.style](RUNTIMES[options.runtime](options.model))
    uvicorn.run(app, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
