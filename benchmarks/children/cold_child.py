"""A peer's first answer: arguments NAME MODEL INPUTS.npz THREADS; a line is written when it is there."""

import sys
from pathlib import Path

from pipeline.peers.child import load_inputs, open_runtime


def main() -> None:
    """Answer once."""
    name, model, inputs, threads = sys.argv[1:]
    outputs = open_runtime(name, model, load_inputs(Path(inputs)), int(threads))()
    sys.stdout.write(f"{[array.shape for array in outputs]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
