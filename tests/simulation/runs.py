"""Runs of plans: each in a fork of a process that has imported the project with simulated threads."""

import importlib
import os
import pickle
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.simulation.files import VARIANTS, Files
from tests.simulation.importing import import_project, unsimulated
from tests.simulation.outcome import Outcome
from tests.simulation.plan import Plan
from tests.simulation.planting import Planted

#: Where files are in memory: a run reads its packs a thousand times.
_IN_MEMORY = Path("/dev/shm")

#: A run takes a third of a second, and few take two.
_CPU_SECONDS = 30

_WORLD = "tests.simulation.world"
_WRITE = (
    "import sys; from pathlib import Path; from tests.simulation.packs import write; "
    "write(Path(sys.argv[1]))"
)


def prepare(folder: Path, planted: Sequence[Planted] = ()) -> Path:
    """Write the models' packs into ``folder``, import the project simulated, and return ``folder``.

    ``planted``: faults in what is imported. What is in ``folder`` already stays.

    Raises:
        RuntimeError: a module of the project holds a clock or a lock of the library.
    """
    if not (folder / VARIANTS[-1]).exists():
        subprocess.run([sys.executable, "-c", _WRITE, str(folder)], check=True)
    import_project(planted)
    if unreplaced := unsimulated():
        raise RuntimeError("not simulated: " + ", ".join(unreplaced))
    # It takes what it needs of the project as that is now.
    importlib.import_module(_WORLD).warm_up(folder)
    return folder


def played(plan: Plan, packs: Path) -> Outcome:
    """Return the outcome of ``plan``, each of whose processes is a fork of this one."""
    outcome: Outcome | None = None
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if _IN_MEMORY.exists() else None) as folder:
        repository = Path(folder) / "repository"
        Files(repository, packs).fill()
        for life in range(len(plan.processes)):
            later = _forked(plan, life, repository, packs)
            if outcome is None:
                outcome = later
            else:
                outcome.join(later)
            if outcome.broken:
                break
    assert outcome is not None
    return outcome


def _forked(plan: Plan, life: int, repository: Path, packs: Path) -> Outcome:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reading)
            _limit_cpu()
            outcome = sys.modules[_WORLD].play(plan, life, repository, packs)
            with os.fdopen(writing, "wb") as pipe:
                pickle.dump(outcome, pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    _, status, usage = os.wait4(child, 0)
    if status or not data:
        reason = f"the process ended with {os.waitstatus_to_exitcode(status)}"
        return Outcome(broken=reason, cpu_seconds=usage.ru_utime + usage.ru_stime)
    result = pickle.loads(data)
    assert isinstance(result, Outcome)
    return result


def _limit_cpu() -> None:
    """Have this process be ended where threads go round for ever, however little time passes for them."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))


def tried(plan: Plan, packs: Path) -> tuple[str, tuple[dict[int, int], ...]]:
    """Return what ``plan`` breaks, "" for nothing, and the choices of threads that it took."""
    outcome = played(plan, packs)
    return outcome.broken, outcome.choices
