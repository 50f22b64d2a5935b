"""How long it takes until planted faults are found: ``python -m tests.simulation.finding [NAME...]``.

Without names all of planted/drawn.json. Each is put into the sources of a process of its own, forked from
one that has imported the libraries, which plays the plans of one seed after the other until one fails that
does not without the fault. A line of JSON tells of each fault after how many runs and CPU seconds that was,
and what failed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.simulation.drawing import drawn
from tests.simulation.importing import import_libraries
from tests.simulation.planting import FOLDER, Planted, named, read
from tests.simulation.runs import played, prepare


def main() -> None:
    """Print a line for each fault; exit 1 where one is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu-seconds", type=float, default=300.0, help="for each fault")
    parser.add_argument(
        "--packs", type=Path, help="folder of the models' packs, as of the simulation"
    )
    options = parser.parse_args()
    faults = [named(name) for name in options.names] or read(FOLDER / "drawn.json")
    import_libraries()
    with tempfile.TemporaryDirectory() as folder:
        packs = options.packs or Path(folder)
        statuses = [_status(fault, packs, options.seed, options.cpu_seconds) for fault in faults]
    sys.exit(int(any(statuses)))


def _status(fault: Planted, packs: Path, seed: int, cpu_seconds: float) -> int:
    """Look for ``fault`` in a process of its own; return 1 where it is not found in so many seconds."""
    child = os.fork()
    if not child:
        status = 2
        try:
            prepare(packs, [fault])
            status = _looked(fault.name, packs, seed, cpu_seconds)
        finally:
            sys.stdout.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _looked(name: str, packs: Path, seed: int, limit: float) -> int:
    runs, cpu_seconds, broken = 0, 0.0, ""
    while not broken and cpu_seconds < limit:
        started_at = time.process_time()
        outcome = played(drawn(seed + runs), packs)
        cpu_seconds += outcome.cpu_seconds + time.process_time() - started_at
        broken = outcome.broken
        if broken and _fails_without(seed + runs, packs):
            print(f"seed {seed + runs} fails without {name}, too", file=sys.stderr, flush=True)
            broken = ""
        runs += 1
    lines = broken.strip().split("\n")
    line = {
        "fault": name,
        "runs": runs,
        "cpu_seconds": round(cpu_seconds, 1),
        "failed": lines[-1][:200],
    }
    print(json.dumps(line), flush=True)
    return int(not broken)


def _fails_without(seed: int, packs: Path) -> bool:
    """Return whether the plan of ``seed`` fails in the sources as they are."""
    command = [sys.executable, "-m", "tests.simulation", str(seed), "--packs", str(packs)]
    return subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode != 0


if __name__ == "__main__":
    main()
