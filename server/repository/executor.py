"""Steps are carried out: engines are opened, opened again and closed, and what fails is undone.

Invariant: a model's ``place`` is what its engine was opened with, and what the budget holds for it; what
an engine that cannot be closed holds stays reserved. Who calls does one thing at a time (repository.py).
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial

from models.runtime.heap import trim_heap
from server.errors import FilesChangedError
from server.memory.budget import Budget
from server.repository.entry import Absence, Entry, Lost, Unloaded, Uses
from server.repository.fleet import Change, Place
from server.repository.models import Models
from server.repository.opening import Opener
from server.repository.preparing import Prepared
from server.repository.worker import Worker
from server.requests.uninterrupted import to_its_end, uninterrupted
from server.settings.sizes import format_size

_log = logging.getLogger(__name__)

#: What gives back what was before, the last change first.
Undo = list[Callable[[], Awaitable[None]]]


class Executor:
    """Changes the engines of ``models``, within ``budget``.

    ``patience_seconds``: how long a request takes at most that has found a model and is still being read.
    """

    def __init__(
        self, models: Models, budget: Budget, opener: Opener, patience_seconds: float
    ) -> None:
        self._models = models
        self._budget = budget
        self._opener = opener
        self._patience = patience_seconds
        #: What no entry has any more, until the requests that it accepted are answered.
        self.leaving: set[Worker] = set()
        #: What was given up, until it ends.
        self.left_behind: set[Worker] = set()

    @contextlib.asynccontextmanager
    async def undoing(self) -> AsyncIterator[Undo]:
        """Yield a log of how to undo what is done inside; on an error, or when cancelled, that is done."""
        undo: Undo = []

        async def back() -> None:
            for each in reversed(undo):
                await each()

        try:
            yield undo
        except BaseException:
            await to_its_end(back())
            raise

    async def change(self, changes: Iterable[Change], undo: Undo) -> None:
        """Have loaded models served with other plans, one after the other."""
        for name, place in changes:
            entry = self._models[name]
            if entry.place is not None:
                undo.append(partial(self._put_back, entry, entry.place))
            await self.reopen(entry, place)

    async def _put_back(self, entry: Entry, place: Place) -> None:
        if entry.serves and entry.place is not place:
            await self.try_reopen(entry, place)

    async def try_reopen(self, entry: Entry, place: Place) -> None:
        """Have a loaded model served with another plan, if that can be."""
        try:
            await self.reopen(entry, place)
        except Exception as exc:  # noqa: BLE001  it serves as it did, or has said why it does not
            if entry.serves:
                _log.warning("model %s keeps the plan it has: %s", entry.name, exc)

    @uninterrupted
    async def reopen(self, entry: Entry, place: Place) -> None:
        """Have a loaded model served with another plan.

        Where it can be served neither so nor as before, it is closed.
        """
        model, before, worker = entry.prepared, entry.place, entry.worker
        assert model is not None
        assert before is not None
        assert worker is not None
        if not await asyncio.to_thread(model.is_there):
            raise FilesChangedError(entry.name)
        _log.info("model %s: planned again, %s", entry.name, _change(before, place))
        try:
            await worker.reopen(
                partial(self._opener.reopen, entry.name, model, place),
                partial(self._opener.reopen, entry.name, model, before),
            )
        except Exception:
            # Who gave up what is stuck closes it, and brings another in its place.
            if not entry.serves and not worker.abandoned:
                await self.close(entry, entry.reason)
            raise
        entry.move(place)

    async def open(self, entry: Entry, model: Prepared, place: Place) -> None:
        """Have ``entry``, which is not loaded, serve ``model``; raises as Opener.open."""
        entry.read()
        entry.serve(await self._opener.open(entry.name, model, place), model, place)

    async def open_beside(
        self, entry: Entry, model: Prepared, place: Place, key: str
    ) -> tuple[Worker, Uses]:
        """Have ``entry`` serve ``model``, which holds memory as ``key``; return what it served, to retire.

        Raises as Opener.open.
        """
        try:
            worker = await self._opener.open(key, model, place)
        except BaseException:
            self.keep_lost(key)
            raise
        before, uses, entry.uses = entry.worker, entry.uses, Uses()
        assert before is not None
        entry.serve(worker, model, place)
        return before, uses

    @uninterrupted
    async def retire(self, name: str, worker: Worker, uses: Uses, key: str) -> None:
        """Close ``worker``, whose place another has taken, and let that hold its memory as ``name``."""
        await uses.over(self._patience)
        lost = await self._ended(name, worker)
        if lost:
            _log.error("model %s: the memory of what it was stays reserved: %s", name, lost)
            self.keep_lost(name)
        else:
            self._budget.release(name)
        self._budget.rename(key, name)
        trim_heap()

    async def go_back(self, entry: Entry, model: Prepared, place: Place) -> None:
        """Have ``entry``, which is not loaded, serve again what it did, where its files are still there."""
        self.keep_lost(entry.name)
        try:
            if await asyncio.to_thread(model.is_there):
                await self.open(entry, model, place)
        except Exception as exc:  # noqa: BLE001  the first error is the reason
            _log.warning("model %s cannot be served as before: %s", entry.name, exc)

    def keep_lost(self, key: str) -> None:
        """Keep reserved, beside what comes next, what is left as ``key`` of an engine that is not open."""
        if key in self._budget.held():
            self._budget.set_apart(key, "lost")

    @uninterrupted  # what nobody can close any more would stay reserved
    async def close(
        self, entry: Entry, why: str, cause: Absence = "failed", *, patiently: bool = False
    ) -> None:
        """Let ``entry``, if it is loaded, finish its requests, and give its memory back.

        ``patiently``: also those that have found it and are still being read.
        """
        worker = entry.worker
        entry.become(Unloaded(why, cause))
        if worker is None:
            return
        uses, entry.uses = entry.uses, Uses()
        # What is stuck does not end; nor do the requests that it had.
        if patiently and not worker.abandoned:
            await uses.over(self._patience)
        lost = await self._ended(entry.name, worker)
        if lost:
            entry.become(Lost(lost))
        else:
            self._budget.release(entry.name)
        trim_heap()

    async def _ended(self, name: str, worker: Worker) -> str:
        """Close ``worker``; return why its memory can never be used again, empty where it can.

        The memory of a broken engine is still the disk's; that of a stuck one stands apart until it ends.
        """
        self.leaving.add(worker)
        try:
            await worker.close()
        except Exception as exc:  # noqa: BLE001  the other models go on
            _log.exception("model %s cannot be closed", name)
            return f"it could not be closed: {exc}"
        finally:
            self.leaving.remove(worker)
        if worker.abandoned:
            self._leave_behind(name, worker)
            return ""
        return worker.engine.broken or worker.served.lost

    def _leave_behind(self, name: str, worker: Worker) -> None:
        """Keep what a stuck engine holds reserved until it ends, beside what ``name`` takes anew."""
        apart = self._budget.set_apart(name, "stuck")
        self.left_behind.add(worker)

        def wait() -> None:
            worker.wait()
            self.left_behind.discard(worker)
            if not worker.engine.broken:
                self._budget.release(apart)
                trim_heap()

        # Nobody waits for it, the end of the process neither.
        threading.Thread(target=wait, name=f"left-{name}", daemon=True).start()


def _change(before: Place, after: Place) -> str:
    sizes = (format_size(place.fitted.plan.total_bytes) for place in (before, after))
    turns = " in turns with others" if after.in_turns else ""
    return f"{' -> '.join(sizes)}{turns}"
