"""The inner end of a process that is measured: the peers' libraries, and commands on stdin."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.runtime.sessions import wait_until_quiet
from pipeline.peers import ONNXRUNTIME, OPENVINO

# The peers' libraries, set up for the lowest delay as their documentation says, with their defaults else.
#
# Both compute in float32 with as many threads as we do. A fixed input shape is given to OpenVINO, which
# compiles for it; ONNX Runtime needs none.

Tensors = Mapping[str, NDArray[Any]]
#: Answers one request: the outputs in the order of the model's graph.
Answer = Callable[[], list[NDArray[Any]]]


def open_runtime(name: str, model: str, inputs: Tensors, threads: int) -> Answer:
    """Load the file ``model`` into the peer called ``name``; return what answers ``inputs``.

    Raises:
        ImportError: its library is not installed. Exception: it refuses the model.
    """
    return _OPENERS[name](model, inputs, threads)


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


# The inner end of a process that is measured: commands on stdin, one JSON object a line on stdout.
#
# First it reports that it is loaded and has answered once, with what that took. Then "run": answer, tell
# the seconds. "settle": wait until nothing of it runs, report the CPU seconds since "run". "save PATH":
# write the last outputs as .npz, in order. A failure to load is reported as {"failure": ...}, and the
# process ends.


def serve(load: Callable[[], Answer], settle: Callable[[], None] = wait_until_quiet) -> None:
    """Load, answer once, then obey until stdin ends."""
    try:
        answer = load()
        before = anonymous_bytes()
        outputs = answer()
    except Exception as exc:  # noqa: BLE001  whatever a library raises goes to the parent process
        _tell(failure=f"{type(exc).__name__}: {exc}")
        return
    settle()
    # What it touched for activations and kept.
    _tell(arena_bytes=max(anonymous_bytes() - before, 0))
    used = 0.0
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        if command == "run":
            used, started = time.process_time(), time.perf_counter()
            outputs = answer()
            _tell(seconds=time.perf_counter() - started)
        elif command == "settle":
            settle()
            _tell(cpu_seconds=time.process_time() - used)
        else:
            np.savez(argument, *outputs)
            _tell()


def load_inputs(path: Path) -> dict[str, NDArray[Any]]:
    """Return the inputs in ``path``; strings as the objects that ONNX Runtime takes."""
    with np.load(path) as file:
        return {
            key: array.astype(object) if array.dtype.kind == "U" else array
            for key, array in file.items()
        }


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process that is resident; 0 where the kernel does not say."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) << 10
    return 0


def _tell(**fields: Any) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


# A peer's process: ``python -m pipeline.peers.child NAME MODEL INPUTS.npz THREADS``.


def main() -> None:
    """Load the model and obey."""
    name, model, inputs, threads = sys.argv[1:]
    serve(lambda: open_runtime(name, model, load_inputs(Path(inputs)), int(threads)))


if __name__ == "__main__":
    main()
