"""The peer: what one would write without Layerstream. FastAPI and a runtime that opens the model's file.

Run as ``python -m benchmarks.children.peer_server MODEL.onnx PORT [--runtime RUNTIME]``.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, Request
from numpy.typing import NDArray

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


def main() -> None:
    """Open the model and serve it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("port", type=int)
    parser.add_argument("--runtime", choices=RUNTIMES, default="onnxruntime")
    options = parser.parse_args()
    app = create_app(RUNTIMES[options.runtime](options.model))
    uvicorn.run(app, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
