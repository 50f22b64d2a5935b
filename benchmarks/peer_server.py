"""The peer: what one would write without Layerstream. FastAPI, ONNX Runtime, all weights in memory.

Run as ``python -m benchmarks.peer_server MODEL.onnx PORT``.
"""

import sys
from typing import Any

import numpy as np
import onnxruntime as ort
import uvicorn
from fastapi import FastAPI, Request


def create_app(path: str) -> FastAPI:
    """Return an application with one infer endpoint for the model in ``path``."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    app = FastAPI()

    @app.get("/v2/health/ready")
    def ready() -> dict[str, bool]:
        return {"ready": True}

    @app.post("/v2/models/{name}/infer")
    async def infer(name: str, request: Request) -> dict[str, Any]:
        tensor = (await request.json())["inputs"][0]
        array = np.asarray(tensor["data"], np.float32).reshape(tensor["shape"])
        result = session.run(None, {tensor["name"]: array})[0]
        output = {"name": "output", "datatype": "FP32", "shape": list(result.shape)}
        return {"model_name": name, "outputs": [{**output, "data": result.ravel().tolist()}]}

    return app


if __name__ == "__main__":
    uvicorn.run(create_app(sys.argv[1]), port=int(sys.argv[2]), log_level="warning")
