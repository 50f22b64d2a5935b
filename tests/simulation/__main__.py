"""Simulate the service: ``python -m tests.simulation SEED [--runs N] [--plan FILE] [--requests 100]``.

Each run is a process forked from one that has imported all; a run that fails is printed with its seed, and
its plan, cut down as far as it still fails, is written to FILE.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.simulation.importing import import_project, unsimulated
from tests.simulation.plan import Plan, drawn

_MODELS = "import sys; from pathlib import Path; from tests.simulation.packs import write; write(Path(sys.argv[1]))"


def prepare(folder: Path) -> Path:
    """Compile the models in a process with real clocks, import the project simulated; the repository."""
    subprocess.run([sys.executable, "-c", _MODELS, str(folder)], check=True)  # noqa: S603
    import_project()
    if held := unsimulated():
        raise SystemExit("not simulated:\n" + "\n".join(held))
    return folder / "repository"


def forked(plan: Plan, repository: Path) -> dict[str, object]:
    """Return the outcome of ``plan``, which is played in a fork of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reading)
            from tests.simulation.world import play

            outcome, _ = play(plan, repository)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(vars(outcome), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status or not data:
        return {"broken": f"the process ended with {status}"}
    outcome: dict[str, object] = pickle.loads(data)  # noqa: S301  of our own child
    return outcome


def main() -> None:
    """Play plans, and print what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--seconds", type=float, help="no more runs begin after that")
    parser.add_argument("--plan", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        repository = prepare(Path(folder))
        if options.plan is not None and options.plan.exists():
            plans = [Plan.from_json(options.plan.read_text())]
        else:
            seeds = range(options.seed, options.seed + options.runs)
            plans = [drawn(seed, options.requests) for seed in seeds]
        total, states, failed = Counter[str](), Counter[str](), 0
        began = time.monotonic()
        for plan in plans:
            if options.seconds and time.monotonic() - began > options.seconds:
                break
            outcome = forked(plan, repository)
            total["runs"] += 1
            total["requests"] += plan.requests
            for name in ("turns", "cpu_seconds"):
                total[name] += outcome.get(name, 0)
            states.update(outcome.get("states", {}))
            states.update(outcome.get("statuses", {}))
            if outcome["broken"]:
                failed += 1
                print(f"seed {plan.seed}: {outcome['broken']}", flush=True)
        print(json.dumps({**total, "failed": failed, "states": states}, indent=1))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
