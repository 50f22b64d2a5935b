"""A peer's process: ``python -m pipeline.peers.child NAME MODEL INPUTS.npz THREADS``."""

import sys
from pathlib import Path

from pipeline.peers.runtimes import open_runtime
from pipeline.peers.serve import load_inputs, serve


def main() -> None:
    """Load the model and obey."""
    name, model, inputs, threads = sys.argv[1:]
    serve(lambda: open_runtime(name, model, load_inputs(Path(inputs)), int(threads)))


if __name__ == "__main__":
    main()
