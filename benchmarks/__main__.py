"""``make bench``: the benchmarks, one after the other; each can be run alone by its name.

``python -m benchmarks.served_memory -h`` shows the options of one.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from models.processes import child_environment, python_command

_OTHERS = (
    "benchmarks.served_memory",
    "benchmarks.tight_memory",
    "benchmarks.compile_memory",
    "benchmarks.reads",
    "benchmarks.http_overhead",
    "benchmarks.overload",
    "benchmarks.scheduling.deadlines",
    "benchmarks.many_models",
    "benchmarks.placement",
)


def _run(module: str, *arguments: str) -> int:
    print(f"\n== {' '.join((module, *arguments))}", flush=True)
    return subprocess.run(
        python_command(module, *arguments), check=False, env=child_environment()
    ).returncode


def main() -> None:
    """Run all; exit 1 when one of them failed."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        source, pack = Path(folder, "resnet50.onnx"), Path(folder, "resnet50")
        codes = [
            _run("cli", "zoo", "build", "resnet50", "-o", str(source)),
            _run("cli", "compile", str(source), "-o", str(pack)),
            _run("cli", "bench", "pipeline", str(pack)),
            _run("benchmarks.streams", f"{pack}=50%", f"{pack}=25%"),
        ]
    codes += [_run(name) for name in _OTHERS]
    sys.exit(1 if any(codes) else 0)


if __name__ == "__main__":
    main()
