"""Models that were lost, or could not be loaded, for a reason that may pass: they are tried again.

A file system is away while it is mounted again, a disk is pulled out and put back, a server restarts, the
system is short of memory or files: no event shows when that is over. So such a model is tried again
whatever ``model_control`` is, after pauses that double up to a limit: a short loss heals soon, a long one
costs little. A model that was loaded and has answered since is lost anew, and its pauses are short again.
What cannot pass, such as a damaged pack, is not tried before its files are others: where it is due they are
checked, and no more.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Self

from server.errors import system_hint
from server.faults import FAILURES
from server.repository.on_disk import FileStatus, Slot, look_at_pack
from server.repository.repository import NOTHING_LACKS, Lack, Repository

_log = logging.getLogger(__name__)

_CHECK_SECONDS = 0.5


@dataclass(frozen=True)
class Pauses:
    """Seconds until a model is tried: each pause is twice the one before, from ``first`` to ``max``."""

    first: float = 0.5
    max: float = 60.0


@dataclass(frozen=True)
class Failure:
    """A model that does not serve as it shall. ``due``: when it is tried, after ``pause`` seconds.

    ``reason``: why the last try failed, as the log has it; empty before the first. ``lack``: what it lacked
    at the last look. ``files``: as they were at the last check, where it fails as long as they are the
    same; None: there was none, or it may pass.
    """

    due: float
    pause: float
    reason: str = ""
    lack: Lack = NOTHING_LACKS
    files: frozenset[FileStatus] | None = None

    @classmethod
    def first(cls, now: float, pauses: Pauses, lack: Lack = NOTHING_LACKS) -> Self:
        """Return one that was not there before ``now``."""
        return cls(now + pauses.first, pauses.first, lack=lack)

    def tried(self, now: float, pauses: Pauses, reason: str) -> Self:
        """Return the same after another try, for the case that it has failed."""
        pause = min(2 * self.pause, pauses.max)
        return replace(self, due=now + pause, pause=pause, reason=reason)

    def observed(self, now: float, pauses: Pauses, lack: Lack) -> Self:
        """Return the same at another look, where ``lack`` is what it lacks.

        One of the workers may have been loaded, have answered and be lost since the last look: then it is
        another failure. One that has not answered was never back, and pauses go on growing.
        """
        if any(worker.served.requests for worker in lack.workers - self.lack.workers):
            return self.first(now, pauses, lack)
        return replace(self, lack=lack)


def _files_of(packs: Iterable[Slot]) -> frozenset[FileStatus]:
    """Return the files of ``packs`` as they are now; blocks."""
    return frozenset(file for slot in packs for file in look_at_pack(slot.folder))


class Retrier:
    """Tries models of ``repository`` again, one at a time; ``clock``: in seconds."""

    def __init__(
        self,
        repository: Repository,
        pauses: Pauses | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repository = repository
        self._pauses = pauses or Pauses()
        self._clock = clock
        #: At the last look.
        self._failures: Mapping[str, Failure] = {}
        #: Models that are tried at the next look whether they are due or not.
        self._early: set[str] = set()
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
            failures = self._observe()
            now = self._clock()
            due = {name for name, failure in failures.items() if failure.due <= now}
            failures |= await self._checked(due, failures)
            due = {name for name in due if failures[name].due <= now} | self._early
            self._early = set()
            self._failures = failures
            for name in sorted(due):
                await self._try(name, failures.get(name))
            return sorted(due)

    def make_due(self) -> None:
        """Let all be tried now, and models that were refused: something has changed, which may help."""
        entries = self._repository.entries()
        refused = {entry.model for entry in entries if entry.absence == "refused"}
        lacking = self._repository.lacking().items()
        self._early = refused | {name for name, lack in lacking if not lack.packs}

    def _observe(self) -> dict[str, Failure]:
        """Return the models that do not serve as they shall, and may if they are tried."""
        now, before = self._clock(), self._failures
        return {
            name: before[name].observed(now, self._pauses, lack)
            if name in before
            else Failure.first(now, self._pauses, lack)
            for name, lack in self._repository.lacking().items()
        }

    async def _checked(
        self, due: Collection[str], failures: Mapping[str, Failure]
    ) -> dict[str, Failure]:
        """Return those of ``due`` that fail as long as their files are the same, after a check of these."""
        checked = {}
        for name in due:
            failure = failures[name]
            packs = failure.lack.packs
            if not packs:
                continue
            files = await asyncio.to_thread(_files_of, packs)
            before = failure.files or frozenset(file for slot in packs for file in slot.seen)
            is_other = bool(files) and not files <= before
            checked[name] = replace(
                failure if is_other else failure.tried(self._clock(), self._pauses, failure.reason),
                files=files,
            )
        return checked

    async def _try(self, name: str, failure: Failure | None) -> None:
        failure = failure or Failure.first(self._clock(), self._pauses)
        reason = ""
        try:
            await self._repository.retry(name)
        except FAILURES as exc:
            reason = str(exc)
            if failure.reason != reason:
                _log.warning("model %s: not loaded again: %s", name, f"{exc}{system_hint(exc)}")
        else:
            is_lost = any(entry.may_pass for entry in self._repository.models.of(name))
            if failure.reason and not is_lost:
                _log.warning("model %s: loaded again", name)
            reason = failure.reason if is_lost else ""
        tried = failure.tried(self._clock(), self._pauses, reason)
        self._failures = {**self._failures, name: tried}
