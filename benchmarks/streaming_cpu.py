"""What streaming costs in CPU: process CPU seconds of one inference, ``2s`` beside ``pre``.

Counted is the whole process, from the request until nothing of it runs any more.

Run as ``python -m benchmarks.streaming_cpu PACK... [--iterations 20]``; exit 1 above 1.10.
"""

import argparse
import json
import sys
from pathlib import Path

from models.packs.pack import open_pack
from models.runtime.sessions import claim_process
from pipeline.benchmark.configuration import BenchConfiguration
from pipeline.benchmark.run import BenchOptions, bench_pipeline
from pipeline.devices.cpu import CpuDevice
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES

_WANTED = 1.10


def main() -> None:
    """Measure each pack and print JSON."""
    claim_process()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packs", nargs="+", type=Path, metavar="PACK")
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    options = BenchOptions(arguments.iterations, device=CpuDevice(arguments.threads), peers=())
    results = []
    for path in arguments.packs:
        configuration = BenchConfiguration("2s", ARCHITECTURES["2s"])
        document = bench_pipeline(Program.as_compiled(open_pack(path)), [configuration], options)
        cpu = {row["architecture"]: row["cpu_seconds"] for row in document["rows"]}
        ratio = cpu["2s"] / cpu["pre"]
        results.append({"model": document["model"], "cpu_seconds": cpu, "ratio": ratio})
    print(json.dumps(results, indent=2))
    sys.exit(0 if all(result["ratio"] <= _WANTED for result in results) else 1)


if __name__ == "__main__":
    main()
