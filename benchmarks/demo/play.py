"""What the demonstration of memory does: makes the network, lets each contender try."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.commands import layerstream
from benchmarks.demo.story import TITLES, Shown, error
from benchmarks.machine.environment import copy_environment
from benchmarks.machine.room import find_rooms
from benchmarks.servers.attempt import Attempt, ContenderTask, attempt
from benchmarks.servers.contenders import MAPPED, OURS, RESIDENT, contenders

NETWORK, TITLE = "vgg19", "VGG-19"
LIMIT = 160_000_000
# The process takes about 75 MB, and 50 MB of library pages, which count where nothing keeps the limit.
_BUDGET = "32MiB"
REQUESTS = 5
#: Where a server is not ready, or has not answered everything, after so long it is cut off.
_READY_SECONDS, _PEER_SECONDS, _OUR_SECONDS = 20.0, 15.0, 60.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class DemoResult:
    """What came of it. ``reference``: ONNX Runtime, weights in memory, without a limit."""

    weights: int
    rows: list[Shown]
    reference: Attempt
    why_not: str
    """Why the limit is not kept, only compared with; empty where it is kept."""

    @property
    def table(self) -> list[Shown]:
        """Return the rows, and the reference after the first where that had a limit."""
        if self.why_not:
            return self.rows
        return [self.rows[0], Shown(RESIDENT, self.reference, LIMIT, kept=False), *self.rows[1:]]

    @property
    def error(self) -> float | None:
        """Return how far our answers are from the reference's."""
        return error(self.rows[-1].attempt, self.reference)


def play(folder: Path, say: Say) -> DemoResult:
    """Play in ``folder``, which is on a disk and empty; ``say`` what begins."""
    say(f"drawing the weights of {TITLE} and compiling it")
    source, repository = folder / f"{NETWORK}.onnx", folder / "repository"
    layerstream("zoo", "build", NETWORK, "-o", str(source))
    # What --no-check leaves out, a comparison with ONNX Runtime, is done below.
    pack = layerstream("compile", str(source), "-o", str(repository / NETWORK), "--no-check")
    environment = copy_environment(folder / "environment")
    rooms, why_not = find_rooms()
    found = contenders(source, repository, _BUDGET)
    rows = []
    for name in (RESIDENT, MAPPED, OURS):
        say(f"{TITLES[name]} in {LIMIT / 1e6:.0f} MB" if not why_not else TITLES[name])
        task = _task(_OUR_SECONDS if name == OURS else _PEER_SECONDS)
        tried = attempt(found[name], environment, task, rooms, LIMIT)
        rows.append(Shown(name, tried, LIMIT, kept=not why_not))
    reference = rows[0].attempt
    if not why_not:
        say(f"{TITLES[RESIDENT]} without a limit, to compare the answers")
        reference = attempt(found[RESIDENT], environment, _task(_OUR_SECONDS), rooms)
    return DemoResult(pack["weight_bytes"], rows, reference, why_not)


def _task(seconds: float) -> ContenderTask:
    generator = np.random.default_rng(0)
    shape = (1, 3, 224, 224)
    requests = [generator.standard_normal(shape, np.float32) for _ in range(REQUESTS)]
    return ContenderTask(NETWORK, "image", requests, _READY_SECONDS, seconds, seconds)


def free_memory() -> int:
    """Return the bytes that processes could still take."""
    text = Path("/proc/meminfo").read_text(encoding="ascii")
    (line,) = (line for line in text.splitlines() if line.startswith("MemAvailable:"))
    return int(line.split()[1]) << 10
