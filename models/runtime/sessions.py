"""ONNX Runtime sessions: one thread pool for all of them where the process is ours.

A pool a session means many pools that spin against each other; ONNX Runtime can have one for the whole
process instead, but then refuses every session that does not use it. So only a process that calls
``claim_process`` (the command line does) gets the shared pool; in a process of another program each session
has threads of its own, which sleep between runs. Plans do not count these: each takes 51 KB and a stack,
one less than there are threads in each session.
"""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.runtime.heap import bound_heap
from models.runtime.joined_graphs import runs_in_order

# A model that copies one number: loading it makes ONNX Runtime build its registries, about 1.5 MB
# that belong to the library and not to the first model that is loaded.
_WARM_UP = bytes.fromhex(
    "080912003a360a100a017812017922084964656e7469747912005a0f0a0178120a0a08080112040a020801"
    "620f0a0179120a0a08080112040a02080142040a001011"
)
# Else weights are packed again, and readers of a DequantizeLinear get copies of it, behind all other nodes.
_ALTERS_NOTHING = {"session.disable_prepacking": "1", "session.disable_quant_qdq": "1"}
_TASKS = Path("/proc/self/task")


# Imported where they are used: commands that compute nothing, and completion, do without.
if TYPE_CHECKING:
    import onnxruntime as ort
    from numpy.typing import NDArray


class SessionError(Exception):
    """ONNX Runtime cannot load a graph."""


class _Process:
    """What is decided once for the process."""

    lock = threading.Lock()
    claimed = False
    threads: int | None = None
    launching: tuple[int, ...] = ()


def claim_process() -> None:
    """Say that this process is ours: set its heap, and let all sessions share one thread pool.

    Call it before anything else here.
    """
    _Process.claimed = True
    # What libraries do as they are imported and no command needs: look for plugins through all that is
    # installed, start threads for products of NumPy's.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    bound_heap()


def use_threads(threads: int | None = None) -> int:
    """Start ONNX Runtime for ``threads`` threads (default: one a core); return their number.

    The first call of the process decides; later ones return what it chose.
    """
    import onnxruntime as ort

    with _Process.lock:
        if _Process.threads is None:
            _Process.threads = threads or len(os.sched_getaffinity(0))
            before = tasks()
            if _Process.claimed:
                ort.set_global_thread_pool_sizes(_Process.threads, 1)
            ort.InferenceSession(_WARM_UP, _threaded(), providers=["CPUExecutionProvider"])
            if _Process.claimed:
                pool, cores = tasks() - before, os.sched_getaffinity(0)
                _Process.launching = keep_apart(pool, _Process.threads, cores)
        return _Process.threads


def launching_cores() -> tuple[int, ...]:
    """Return the core for the thread that launches kernels, beside those of the shared pool; () if any."""
    return _Process.launching


def threads_of_device(threads: int | None) -> int:
    """Start ONNX Runtime; return how many threads compute for a device with ``threads``.

    Those of the pool that all share, or where there is none as many as that.
    """
    shared = use_threads(threads)
    return shared if _Process.claimed or threads is None else threads


def _threaded(threads: int | None = None) -> "ort.SessionOptions":
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if _Process.claimed:
        options.use_per_session_threads = False
    else:
        options.intra_op_num_threads = threads or _Process.threads
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def session_options(optimise: bool, threads: int | None = None) -> "ort.SessionOptions":
    """Return options for a session of this process: all graph optimisations, or none.

    ``threads``: of its own, where the process has no pool for all.
    """
    import onnxruntime as ort

    use_threads()
    options = _threaded(threads)
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimise else level.ORT_DISABLE_ALL
    return options


def open_session(model: bytes | str, options: "ort.SessionOptions") -> "ort.InferenceSession":
    """Load a model from its bytes or its path, on the CPU.

    Raises:
        SessionError: ONNX Runtime refuses it.
    """
    import onnxruntime as ort

    try:
        # Its fallback would print to stdout and try the same provider again.
        return ort.InferenceSession(
            model, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    except Exception as exc:  # ONNX Runtime's errors share no base class of their own
        raise SessionError(str(exc)) from exc


def open_piece(
    graph: bytes, threads: int | None = None, operators: Path | None = None
) -> "ort.InferenceSession":
    """Load a piece as it is: nothing optimised, no weights repacked, no memory kept between runs.

    ``threads``: as ``session_options``. ``operators``: a library of operators that it has.

    Raises:
        SessionError: ONNX Runtime refuses it, or the library.
    """
    return open_session(graph, _as_it_is(threads, operators))


def open_joined(
    graph: bytes, threads: int | None = None, operators: Path | None = None
) -> "ort.InferenceSession":
    """Load several pieces in one graph (joined_graphs.py) as ``open_piece`` does.

    Nodes run in the order of the graph.

    Raises:
        SessionError: they would not, or it is not known; or as ``open_piece``.
    """
    options = join_options(threads, operators)
    with _file_in_memory("loaded.onnx") as loaded:
        options.optimized_model_filepath = str(loaded)
        session = open_session(graph, options)
        if not runs_in_order(graph, loaded.read_bytes()):
            raise SessionError(
                "ONNX Runtime runs other nodes than the graph has, or in another order"
            )
    return session


def join_options(threads: int | None = None, operators: Path | None = None) -> "ort.SessionOptions":
    """Return those of ``open_joined``."""
    import onnxruntime as ort

    options = _as_it_is(threads, operators)
    # Of the nodes whose inputs are there the first one; the default is any order from the outputs back.
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    return options


@contextlib.contextmanager
def _file_in_memory(name: str) -> Iterator[Path]:
    """Yield the path of an empty file that is on no disk, for a library that writes to a path.

    Raises:
        SessionError: the system gives none.
    """
    try:
        descriptor = os.memfd_create(name)
    except OSError as exc:
        raise SessionError(f"no file in memory: {exc}") from exc
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _as_it_is(threads: int | None, operators: Path | None) -> "ort.SessionOptions":
    options = session_options(optimise=False, threads=threads)
    if operators is not None:
        try:
            options.register_custom_ops_library(str(operators))
        except Exception as exc:  # ONNX Runtime's errors share no base class of their own
            raise SessionError(reason(exc)) from exc
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    for name, setting in _ALTERS_NOTHING.items():
        options.add_session_config_entry(name, setting)
    return options


def open_reference(path: Path) -> "ort.InferenceSession":
    """Load a whole model to compare with, as it stands.

    Raises:
        SessionError: ONNX Runtime refuses it.
    """
    options = session_options(optimise=False)
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.disable_prepacking", "1")  # weights stay mapped
    return open_session(str(path), options)


def run_options() -> "ort.RunOptions":
    """Return options for runs of a session that another thread can end: it sets their ``terminate``."""
    import onnxruntime as ort

    options = ort.RunOptions()
    options.log_severity_level = 4
    return options


def run_session(
    session: "ort.InferenceSession", inputs: "Mapping[str, NDArray[Any]]"
) -> "dict[str, NDArray[Any]]":
    """Return the outputs of ``session`` by name; strings are objects.

    Raises:
        SessionError: ONNX Runtime refuses the inputs, or fails; the message is one line.
    """
    import numpy as np

    feeds = {
        name: array.astype(object) if array.dtype.kind == "U" else array
        for name, array in inputs.items()
    }
    names = [port.name for port in session.get_outputs()]
    try:
        results = session.run(names, feeds)
    except Exception as exc:  # ONNX Runtime's errors share no base class of their own
        raise SessionError(reason(exc)) from exc
    return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}


def reason(exc: Exception) -> str:
    """Return what ONNX Runtime says, in one line, without names of its own files and of working files."""
    text = re.sub(r"\s+", " ", str(exc)).strip()
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : (\w+) : ", r"\1: ", text)
    text = re.sub(r"Load model from .*?\.onnx failed:", "", text)
    text = re.sub(r"/onnxruntime_src/\S+ .*?\)(?: const)? (\[with [^\]]*\] )?(?=\S)", "", text)
    return text[:400]


def open_resident(path: str) -> "ort.InferenceSession":
    """Load a whole model the way users do: all weights in memory, everything optimised.

    Raises:
        SessionError: ONNX Runtime refuses it.
    """
    return open_session(path, session_options(optimise=True))


def tasks() -> frozenset[int]:
    """Return the threads of this process, as the kernel numbers them; none where that is unknown."""
    with contextlib.suppress(OSError):
        return frozenset(int(task.name) for task in _TASKS.iterdir())
    return frozenset()


def keep_apart(
    pool: Collection[int],
    threads: int,
    cores: Collection[int],
    keep: Callable[[int, tuple[int, ...]], None] = os.sched_setaffinity,
) -> tuple[int, ...]:
    """Keep each of ``pool`` on one of ``cores``; return the core that is left for the thread that launches.

    Threads of the pool spin between kernels. Beside another process Linux keeps the one that launches and
    one that spins on the same core, since that is fair to all three, and both wait for each other: kernels
    take twice the time of one thread. docs/explanation/architecture/reading.md, "Threads", has the figures.

    ``pool``: of the ``threads`` that compute all but that one. () and nothing is changed where there are
    more or fewer cores, since then the system has a choice; () where the system refuses.
    """
    if not len(cores) == threads == len(pool) + 1 > 1:
        return ()
    first, *others = sorted(cores)
    try:
        for thread, core in zip(sorted(pool), others, strict=True):
            keep(thread, (core,))
    except OSError:  # a sandbox, or a core that was taken away
        return ()
    return (first,)


_LOOK_SECONDS = 0.005
_BUSY_SHARE = 0.1


def wait_until_quiet(most_seconds: float = 2.0) -> None:
    """Return once this process uses less than a tenth of a core, or after ``most_seconds``."""
    give_up = time.monotonic() + most_seconds
    busy = 1.0
    while busy > _BUSY_SHARE and time.monotonic() < give_up:
        wall, used = time.perf_counter(), time.process_time()
        time.sleep(_LOOK_SECONDS)
        busy = (time.process_time() - used) / (time.perf_counter() - wall)
