"""ONNX Runtime sessions for pieces: one thread pool for all of them, no memory of their own.

Invariant: ``use_threads`` runs before the first session of the process, since ONNX Runtime makes its
global pool when its environment starts.
"""

import os
import threading

import onnxruntime as ort

# A model that copies one number: loading it makes ONNX Runtime build its registries, about 1.5 MB
# that belong to the library and not to the first model that is loaded.
_WARM_UP = bytes.fromhex(
    "080912003a360a100a017812017922084964656e7469747912005a0f0a0178120a0a08080112040a020801"
    "620f0a0179120a0a08080112040a02080142040a001011"
)

_lock = threading.Lock()
_threads: int | None = None


class SessionError(Exception):
    """ONNX Runtime cannot load a graph."""


def use_threads(threads: int | None = None) -> int:
    """Start ONNX Runtime with one pool of ``threads`` (default: one a core); return its size.

    The first call of the process decides; later ones return what it chose.
    """
    global _threads  # noqa: PLW0603  ONNX Runtime's pool is one a process, too
    with _lock:
        if _threads is None:
            _threads = threads or len(os.sched_getaffinity(0))
            ort.set_global_thread_pool_sizes(_threads, 1)
            ort.InferenceSession(_WARM_UP, _pooled_options(), providers=["CPUExecutionProvider"])
        return _threads


def _pooled_options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.use_per_session_threads = False
    return options


def _options(level: ort.GraphOptimizationLevel) -> ort.SessionOptions:
    use_threads()
    options = _pooled_options()
    options.graph_optimization_level = level
    return options


def open_piece(graph: bytes) -> ort.InferenceSession:
    """Load a piece as it is: nothing optimised, no weights repacked, no memory kept between runs.

    Raises:
        SessionError: ONNX Runtime refuses it.
    """
    options = _options(ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as exc:  # ONNX Runtime's errors share no base class of their own.
        raise SessionError(str(exc)) from exc


def open_resident(path: str) -> ort.InferenceSession:
    """Load a whole model the way users do: all weights in memory, everything optimised.

    Raises:
        SessionError: ONNX Runtime refuses it.
    """
    options = _options(ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as exc:
        raise SessionError(str(exc)) from exc
