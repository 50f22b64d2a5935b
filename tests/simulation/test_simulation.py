"""The simulation finds nothing: stored plans that once failed, and plans that nobody has seen.

And it finds what is put in, and does the same in any process.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.examples import over
from tests.simulation.planting import FOLDER, Planted, read, sources

_PLANS = sorted((Path(__file__).parent / "plans").glob("*.json"))
_PLANTED = [fault for path in sorted(FOLDER.glob("*.json")) for fault in read(path)]


#: Runs a simulation on one core.
_ON_ONE_CORE = (
    "import os, runpy; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    "runpy.run_module('tests.simulation', run_name='__main__', alter_sys=True)"
)


def simulated(
    *options: str, status: int = 0, hash_seed: str = "0", on_one_core: bool = False
) -> dict[str, Any]:
    """Return what a simulation in a process of its own prints at its end."""
    module = ("-c", _ON_ONE_CORE) if on_one_core else ("-m", "tests.simulation")
    command = [sys.executable, *module, *options]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert run.returncode == status, run.stdout + run.stderr
    result: dict[str, Any] = json.loads(run.stdout[run.stdout.index("\n{\n") + 1 :])
    return result


def test_nothing_breaks() -> None:
    end = simulated("0", "--runs", "8", "--play", *map(str, _PLANS))
    assert end["runs"] == 8 + len(_PLANS)
    reached = end["reached"]
    assert reached["infer: answered"] > 50
    assert reached["answers at the end"] >= end["runs"]


@over("fault", _PLANTED)
def test_planted_faults_are_of_the_sources_as_they_are(fault: Planted) -> None:
    assert all(sources([fault]).values())


@pytest.mark.slow
@pytest.mark.parametrize("first", [1000, 2000, 3000])
def test_nothing_breaks_in_many_runs(first: int) -> None:
    end = simulated(str(first), "--runs", "1000", "--seconds", "60")
    assert end["runs"] >= 10


@pytest.mark.slow
def test_it_detects_a_planted_fault() -> None:
    options = ("--runs", "1000", "--first", "--cpu-seconds", "60")
    simulated("0", *options, "--plant", "wait-ends-at-its-deadline", status=1)


@pytest.mark.slow
@pytest.mark.parametrize("on_one_core", [False, True])
def test_a_run_is_the_same_in_another_process(on_one_core: bool) -> None:
    first = simulated("0", "--runs", "4", hash_seed="1")
    second = simulated("0", "--runs", "4", hash_seed="2", on_one_core=on_one_core)
    assert first["trace"] == second["trace"]
