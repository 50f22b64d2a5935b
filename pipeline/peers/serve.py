"""The inner end of a process that is measured: commands on stdin, one JSON object a line on stdout.

First it tells that it is loaded and has answered once, with what that took. Then "run": answer, tell the
seconds. "settle": wait until nothing of it runs, tell the CPU seconds since "run". "save PATH": write the
last outputs as .npz, in order. A failure to load is told as {"failure": ...}, and the process ends.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.runtime.sessions import wait_until_quiet
from pipeline.peers.runtimes import Answer


def serve(load: Callable[[], Answer], settle: Callable[[], None] = wait_until_quiet) -> None:
    """Load, answer once, then obey until stdin ends."""
    try:
        answer = load()
        before = anonymous_bytes()
        outputs = answer()
    except Exception as exc:  # noqa: BLE001  whatever a library raises goes to who started this
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
