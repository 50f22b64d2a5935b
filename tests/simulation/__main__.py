"""Simulate the service: ``python -m tests.simulation [SEED] [--runs N] [--seconds S] [--keep FILE]``.

Each run is one process after the other, forked from one that has imported all. What a run breaks is printed
with its seed; with ``--keep`` the first plan that fails is cut down and written to FILE. ``--play FILE...``
plays such files before the seeds. ``--plant NAME`` puts a fault of planted/ into the sources that are run:
``--first --cpu-seconds 300`` then tells after how many CPU seconds it is found. At the end stands a hash of
all that threads did in all runs: another process has the same.
"""

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tests.simulation.drawing import drawn
from tests.simulation.plan import Plan
from tests.simulation.planting import named
from tests.simulation.runs import played, prepare, tried
from tests.simulation.shrinking import shrunk


def main() -> None:
    """Play plans, and print what became of them as JSON; exit 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--requests", type=int, default=100, help="of each run, at least")
    parser.add_argument("--seconds", type=float, help="no run begins after that")
    parser.add_argument("--cpu-seconds", type=float, help="no run begins after so many of them")
    parser.add_argument("--play", type=Path, nargs="*", default=[], help="stored plans")
    parser.add_argument("--keep", type=Path, help="where the first plan that fails is written")
    parser.add_argument(
        "--packs", type=Path, help="folder of the models' packs, kept for the next call"
    )
    parser.add_argument("--plant", nargs="*", default=[], help="faults of planted/ to put in")
    parser.add_argument("--first", action="store_true", help="end with the first run that fails")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        packs = prepare(options.packs or Path(folder), [named(name) for name in options.plant])
        total: Counter[str] = Counter()
        reached: Counter[str] = Counter()
        cpu_seconds = 0.0
        trace = hashlib.blake2b(digest_size=16)
        for plan in _plans(options):
            if options.cpu_seconds is not None and cpu_seconds > options.cpu_seconds:
                break
            outcome = played(plan, packs)
            total.update(runs=1, requests=plan.requests, switches=outcome.switches)
            cpu_seconds += outcome.cpu_seconds
            trace.update(outcome.trace.encode())
            reached.update(outcome.reached)
            if not outcome.broken:
                continue
            total["failed"] += 1
            print(f"seed {plan.seed}: {outcome.broken}", flush=True)
            if options.keep is not None and total["failed"] == 1:
                small = shrunk(plan, partial(tried, packs=packs))
                options.keep.write_text(small.as_json())
                preemptions = sum(map(len, small.choices or ()))
                print(f"{len(small.operations)} operations, {preemptions} preemptions")
            if options.first:
                break
        end = {
            **total,
            "trace": trace.hexdigest(),
            "cpu_seconds": round(cpu_seconds, 2),
            "reached": dict(sorted(reached.items())),
        }
        print("\n" + json.dumps(end, indent=1))
    sys.exit(1 if total["failed"] else 0)


def _plans(options: argparse.Namespace) -> Iterator[Plan]:
    for path in options.play:
        yield Plan.from_json(path.read_text())
    started_at = time.monotonic()
    for seed in range(options.seed, options.seed + options.runs):
        if options.seconds and time.monotonic() - started_at > options.seconds:
            return
        yield drawn(seed, options.requests)


if __name__ == "__main__":
    main()
