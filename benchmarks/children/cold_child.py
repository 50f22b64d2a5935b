"""From nothing to the first answer: arguments NAME MODEL PERCENT INPUTS.npz THREADS OUT.json.

The clock starts when the libraries are imported. MODEL is a pack where NAME is "layerstream".
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.peers.runtimes import Tensors, import_library, open_runtime
from pipeline.peers.serve import load_inputs

Loader = Callable[[], tuple[Callable[[], Any], dict[str, float]]]


def main() -> None:
    """Answer once and write what it took."""
    name, model, percent, inputs, threads, out = sys.argv[1:]
    tensors = load_inputs(Path(inputs))
    load = _loader(name, model, float(percent), tensors, int(threads))
    started = time.perf_counter()
    answer, steps = load()
    loaded = time.perf_counter()
    answer()
    ended = time.perf_counter()
    figures = {
        "seconds": ended - started,
        "steps": {**steps, "load": loaded - started, "first answer": ended - loaded},
        "process_peak_bytes": _peak_bytes(),
    }
    Path(out).write_text(json.dumps(figures), encoding="utf-8")


def _loader(name: str, model: str, percent: float, inputs: Tensors, threads: int) -> Loader:
    if name == "layerstream":
        from models.runtime.sessions import claim_process
        from pipeline.benchmark.ours import Way, open_ours

        def load_ours() -> tuple[Callable[[], Any], dict[str, float]]:
            claim_process()
            ours = open_ours(Path(model), Way("auto", percent), inputs, threads)
            return ours.answer, ours.steps

        return load_ours
    import_library(name)
    return lambda: (open_runtime(name, model, inputs, threads), {})


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


if __name__ == "__main__":
    main()
