"""What a service holds, counted: after work that was cancelled it is what it was before."""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from tests.server.support import LIMIT_SECONDS, ServiceUnderTest

# The test itself, and what a service always runs: its beat, its watchdog, what tries again, the history of
# the page.
_OWN_TASKS = 5


@dataclass(frozen=True)
class Held:
    """Memory of requests and requests that wait for it, requests, models' shares, tasks, files, places."""

    request_bytes: int
    waiting_for_memory: int
    exchanges: int
    budget: dict[str, dict[str, int]]
    used_models: int
    in_line: int
    running: bool
    tasks: int
    descriptors: int
    temporary_files: int
    in_repository: tuple[str, ...]
    watchers: int
    uploads: int

    @classmethod
    def by(cls, service: ServiceUnderTest) -> Self:
        """Return what ``service`` holds now."""
        inside, state = service.inside, service.app.state
        entries = inside.repository.entries()
        workers = [entry.worker for entry in entries if entry.worker is not None]
        root = inside.repository.root
        return cls(
            request_bytes=inside.request_memory.used_bytes,
            waiting_for_memory=inside.request_memory.waiting,
            exchanges=len(inside.exchanges),
            budget=inside.budget.held(),
            used_models=sum(len(entry.uses) for entry in entries),
            in_line=sum(len(worker.line) for worker in workers),
            running=any(worker.stuck_seconds() > 0 for worker in workers),
            tasks=len(asyncio.all_tasks()),
            descriptors=len(os.listdir("/proc/self/fd")),  # noqa: PTH208
            temporary_files=len(list(Path(tempfile.gettempdir()).glob("tmp*"))),
            in_repository=tuple(sorted(path.name for path in root.iterdir())),
            watchers=state.watchers._count,
            uploads=len(inside.uploads._underway),
        )


async def at_rest(service: ServiceUnderTest) -> Held:
    """Return what ``service`` holds once nothing runs any more."""
    async for _ in turns():
        held = Held.by(service)
        if held.tasks == _OWN_TASKS and not (held.running or held.exchanges):
            return held
    raise AssertionError(f"it does not come to rest: {Held.by(service)}")


async def settled(service: ServiceUnderTest, expected: Held) -> None:
    """Wait until ``service`` holds what is ``expected``; threads end what was cancelled in their time."""
    async for _ in turns():
        if Held.by(service) == expected:
            return
    before, now = asdict(expected), asdict(Held.by(service))
    pairs = {name: (before[name], value) for name, value in now.items()}
    raise AssertionError({name: pair for name, pair in pairs.items() if pair[0] != pair[1]})


async def turns() -> AsyncIterator[None]:
    """Yield at each turn of the loop, for as long as a test may wait."""
    loop = asyncio.get_running_loop()
    end = loop.time() + LIMIT_SECONDS
    while loop.time() < end:
        yield
        await asyncio.sleep(0)
