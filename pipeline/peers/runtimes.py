"""The peers' libraries, set up for the lowest delay as their documentation says, with their defaults else.

Both compute in float32 with as many threads as we do. A fixed input shape is given to OpenVINO, which
compiles for it; ONNX Runtime needs none.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.peers import ONNXRUNTIME, OPENVINO

Tensors = Mapping[str, NDArray[Any]]
#: Answers one request: the outputs in the order of the model's graph.
Answer = Callable[[], list[NDArray[Any]]]


def open_runtime(name: str, model: str, inputs: Tensors, threads: int) -> Answer:
    """Load the file ``model`` into the peer called ``name``; return what answers ``inputs``.

    Raises:
        ImportError: its library is not installed. Exception: it refuses the model.
    """
    return _OPENERS[name](model, inputs, threads)


def import_library(name: str) -> None:
    """Import what the peer called ``name`` needs, all that is loaded on first use included.

    Raises:
        ImportError: it is not installed.
    """
    if name == OPENVINO:
        import openvino

        openvino.Core().get_property("CPU", "FULL_DEVICE_NAME")  # loads the plugin
    else:
        import onnxruntime  # noqa: F401


def _onnxruntime(model: str, inputs: Tensors, threads: int) -> Answer:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = dict(inputs)
    return lambda: [np.asarray(array) for array in session.run(None, feeds)]


def _openvino(model: str, inputs: Tensors, threads: int) -> Answer:
    import openvino

    core = openvino.Core()
    network = core.read_model(model)
    network.reshape({name: list(array.shape) for name, array in inputs.items()})
    properties = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
    }
    request = core.compile_model(network, "CPU", properties).create_infer_request()
    feeds = dict(inputs)

    def answer() -> list[NDArray[Any]]:
        results = request.infer(feeds)
        return [results[index] for index in range(len(results))]

    return answer


_OPENERS: dict[str, Callable[[str, Tensors, int], Answer]] = {
    ONNXRUNTIME: _onnxruntime,
    OPENVINO: _openvino,
}
