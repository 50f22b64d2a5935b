"""Runs of plans: each in a fork of a process that has imported the project with simulated threads."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

from tests.simulation.importing import import_project, unsimulated
from tests.simulation.outcome import Outcome
from tests.simulation.plan import Plan

_WRITE = (
    "import sys; from pathlib import Path; from tests.simulation.packs import write; "
    "write(Path(sys.argv[1]))"
)


def prepare(folder: Path) -> Path:
    """Write the models' packs into ``folder``, import the project simulated, and return the repository.

    Raises:
        RuntimeError: a module of the project holds a clock or a lock of the library.
    """
    subprocess.run([sys.executable, "-c", _WRITE, str(folder)], check=True)
    import_project()
    if unreplaced := unsimulated():
        raise RuntimeError("not simulated: " + ", ".join(unreplaced))
    return folder / "repository"


def forked(plan: Plan, repository: Path) -> Outcome:
    """Return the outcome of ``plan``, which is played in a fork of this process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reading)
            from tests.simulation.world import play

            outcome = play(plan, repository)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(outcome, pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status or not data:
        return Outcome(broken=f"the process ended with {os.waitstatus_to_exitcode(status)}")
    result = pickle.loads(data)
    assert isinstance(result, Outcome)
    return result


def tried(plan: Plan, repository: Path) -> tuple[str, dict[int, int]]:
    """Return what ``plan`` breaks, "" for nothing, and the choices of threads that it took."""
    outcome = forked(plan, repository)
    return outcome.broken, outcome.choices
