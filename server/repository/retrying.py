"""Models that were lost, or could not be loaded, for a reason that may pass: they are tried again.

A file system is away while it is mounted again, a disk is pulled out and put back, a server restarts, the
system is short of memory or files: no event shows when that is over. So such a model is tried again
whatever ``model_control`` is, after pauses that double up to a limit: a short loss heals soon, a long one
costs little. A model that was loaded and has answered since is lost anew, and its pauses are short again.
What cannot pass, such as a damaged pack, is not tried before it is another.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from pipeline.budget.errors import RefusedError
from server.errors import system_hint
from server.faults import FAILURES, may_come_back
from server.repository.repository import Repository
from server.repository.worker import Worker

_log = logging.getLogger(__name__)

FIRST_SECONDS = 0.5
MAX_SECONDS = 60.0
_CHECK_SECONDS = 0.5


@dataclass
class _Waiting:
    """When a name is due, after a pause of so many seconds."""

    due: float
    pause: float


class Backoff:
    """When names are tried again: each pause is twice the one before, from ``first`` up to ``maximum``."""

    def __init__(
        self,
        first: float = FIRST_SECONDS,
        maximum: float = MAX_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first = first
        self._maximum = maximum
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}

    def wait(self, name: str) -> None:
        """Let ``name`` wait for its first try, if it does not wait yet."""
        if name not in self._waiting:
            self._waiting[name] = _Waiting(self._clock() + self._first, self._first)

    def tried(self, name: str) -> None:
        """Let ``name``, which was tried now, wait for longer than before until it is tried again."""
        before = self._waiting.get(name)
        pause = self._first if before is None else min(2 * before.pause, self._maximum)
        self._waiting[name] = _Waiting(self._clock() + pause, pause)

    def reset(self, name: str) -> None:
        """Let the next pause of ``name`` be its first."""
        self._waiting.pop(name, None)

    def keep(self, names: Collection[str]) -> None:
        """Forget all others than ``names``."""
        self._waiting = {name: waiting for name, waiting in self._waiting.items() if name in names}

    def make_due(self, names: Collection[str]) -> None:
        """Let ``names``, and those that wait, be due now; their pauses go on growing."""
        for name in names:
            self.wait(name)
        for waiting in self._waiting.values():
            waiting.due = self._clock()

    def due(self) -> list[str]:
        """Return the names whose pause is over."""
        now = self._clock()
        return sorted(name for name, waiting in self._waiting.items() if waiting.due <= now)


class Retrier:
    """Tries models of ``repository`` again, one at a time."""

    def __init__(self, repository: Repository, backoff: Backoff | None = None) -> None:
        self._repository = repository
        self._backoff = backoff or Backoff()
        #: Models on disk that are not loaded and have no entry that says so, or that were refused for room.
        self._pending: set[str] = set()
        #: The workers of lost models at the last look.
        self._workers: dict[str, Worker | None] = {}
        #: What the log said last of a model.
        self._logged: dict[str, str] = {}
        self._exclusive = asyncio.Lock()

    async def run(self) -> None:
        """Look for lost models and try them when they are due; runs until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            try:
                await self.step()
            except Exception:  # noqa: BLE001  after any error the service goes on, and looks again
                _log.exception("models cannot be tried again")

    async def step(self) -> list[str]:
        """Try the models that are due; return their names."""
        async with self._exclusive:
            lost = self._lost()
            self._reset_pauses()
            self._pending = {name for name in self._pending if not self._is_away(name)}
            self._backoff.keep(lost | self._pending)
            for name in lost | self._pending:
                self._backoff.wait(name)
            due = self._backoff.due()
            for name in due:
                await self._try(name)
            return due

    def not_loaded(self, name: str, exc: Exception) -> None:
        """Note that a new or changed model was not loaded; where ``exc`` may pass it is tried again."""
        if isinstance(exc, RefusedError) or may_come_back(exc):
            self._pending.add(name)
            self._backoff.tried(name)
        else:
            self.forget(name)

    def forget(self, name: str) -> None:
        """Note that ``name`` was loaded, or is not in the repository any more."""
        self._pending.discard(name)

    def make_due(self) -> None:
        """Let all be tried now, and models that were refused: something has changed, which may help."""
        entries = self._repository.entries()
        refused = {entry.model for entry in entries if entry.absence == "refused"}
        self._pending |= refused
        self._backoff.make_due(refused | self._lost())

    def _lost(self) -> set[str]:
        return {entry.model for entry in self._repository.entries() if entry.may_pass}

    def _reset_pauses(self) -> None:
        """Reset the pauses of models that have answered since they were loaded again.

        Between two looks a model may be loaded, answer and be lost once more. One that is lost before it
        has answered is not back: its pauses go on growing.
        """
        before, self._workers = self._workers, {}
        for entry in self._repository.entries():
            if entry.may_pass:
                worker = self._workers[entry.name] = entry.worker
                if worker and worker is not before.get(entry.name) and worker.served.requests:
                    self._backoff.reset(entry.model)

    def _is_away(self, name: str) -> bool:
        """Return whether ``name`` is unloaded by request, or is loaded when a request comes."""
        models = self._repository.models
        return models.is_unloaded(name) or models.is_evicted(name)

    async def _try(self, name: str) -> None:
        try:
            await self._repository.retry(name)
        except FAILURES as exc:
            if self._logged.get(name) != str(exc):
                _log.warning("model %s: not loaded again: %s", name, f"{exc}{system_hint(exc)}")
            self._logged[name] = str(exc)
            if isinstance(exc, RefusedError):  # another model has its room by now
                self._pending.add(name)
            elif not may_come_back(exc):
                self._pending.discard(name)
        else:
            self._pending.discard(name)
            is_back = not any(entry.may_pass for entry in self._repository.models.of(name))
            if is_back and self._logged.pop(name, None) is not None:
                _log.warning("model %s: loaded again", name)
        self._backoff.tried(name)
