"""Build and compile a network in a memory cgroup not much larger than twice its weights.

Weights are streamed while compiling, too. The peak of all includes page cache, which the kernel lets grow
to the limit before it takes any back; what counts is that nothing is killed, and the anonymous memory.

Run as ``python -m benchmarks.compile_memory [--network yolov4-p6] [--resolution 640] [--limit 1GiB]``.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.machine.environment import Environment, copy_environment
from benchmarks.machine.sampling import run_sampled
from benchmarks.turns import end
from models.processes import python_command
from models.sizes import parse_size


def attempt(environment: Environment, arguments: list[str], limit: int) -> dict[str, Any]:
    """Run one command of ours inside ``limit`` bytes; return what happened."""
    environment.drop()
    command = environment.private(python_command("cli", *arguments))
    run = run_sampled("layerstream-compile", command, limit)
    return {
        "seconds": round(run.seconds, 2),
        "exit_code": run.status,
        "failure": run.message if run.status else "",
        "oom_kills": run.oom_kills,
        **run.figures,
    }


def main() -> None:
    """Run both and print JSON; exit 1 when one fails or compiling takes 90 s or more."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="yolov4-p6")
    parser.add_argument("--resolution", default="640")
    parser.add_argument("--limit", default="1GiB")
    options = parser.parse_args()
    limit = parse_size(options.limit)
    with tempfile.TemporaryDirectory(dir=".") as folder:
        source, pack = Path(folder, f"{options.network}.onnx"), Path(folder, options.network)
        build = ["zoo", "build", options.network, "--resolution", options.resolution]
        environment = copy_environment(Path(folder, "environment").resolve())
        built = attempt(environment, [*build, "-o", str(source)], limit)
        compiled = attempt(environment, ["compile", str(source), "-o", str(pack)], limit)
        size = source.stat().st_size if source.exists() else 0
    result = {
        "network": options.network,
        "onnx_bytes": size,
        "limit_bytes": limit,
        "build": built,
        "compile": compiled,
    }
    failed = built["exit_code"] or compiled["exit_code"] or compiled["seconds"] >= 90
    end(result, not failed)


if __name__ == "__main__":
    main()
