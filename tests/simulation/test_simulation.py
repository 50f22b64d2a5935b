"""The simulation finds nothing: stored plans that once failed, and plans that nobody has seen."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_PLANS = sorted((Path(__file__).parent / "plans").glob("*.json"))


def simulated(*options: str) -> dict[str, Any]:
    """Return what a simulation in a process of its own prints at its end."""
    command = [sys.executable, "-m", "tests.simulation", *options]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def test_nothing_breaks() -> None:
    end = simulated("0", "--runs", "8", "--play", *map(str, _PLANS))
    assert end["runs"] == 8 + len(_PLANS)
    reached = end["reached"]
    assert reached["status 200"] > 100
    assert reached["answers at the end"] >= end["runs"]


@pytest.mark.slow
@pytest.mark.parametrize("first", [1000, 2000, 3000])
def test_nothing_breaks_in_many_runs(first: int) -> None:
    end = simulated(str(first), "--runs", "1000", "--seconds", "60")
    assert end["runs"] >= 10
