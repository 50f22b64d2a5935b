"""Takes steps: opens engines, opens them again with other plans, closes them, until a target is reached.

Invariant: a model's ``place`` is the plan with which its engine was opened, and for which the budget holds
memory. Memory of an engine that cannot be closed stays reserved. Calls never overlap: reconciling.py
applies one change at a time.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from models.sizes import format_size
from pipeline.budget.budget import Budget
from server.causes import attribution
from server.errors import FilesChangedError
from server.faults import Code, Fault, traceable
from server.repository.entry import Absence, Entry, Unloaded, Uses
from server.repository.environment import RepositoryEnvironment
from server.repository.fleet import Place, PlanTarget, step
from server.repository.models import Models
from server.repository.opening import Opener
from server.repository.preparing import Prepared
from server.repository.worker import Worker
from server.requests.waiting import uninterrupted

_log = logging.getLogger(__name__)

_NONE: Mapping[str, Prepared] = MappingProxyType({})


class Executor:
    """Changes the engines of ``models``, within ``budget``.

    ``patience_seconds``: the longest time from when a request has found a model to its answer.
    """

    def __init__(
        self,
        models: Models,
        budget: Budget,
        opener: Opener,
        environment: RepositoryEnvironment,
        patience_seconds: float,
    ) -> None:
        self._models = models
        self._budget = budget
        self._opener = opener
        self._environment = environment
        self._patience = patience_seconds
        #: Workers that no entry has any more, until the requests that they accepted are answered.
        self.leaving: set[Worker] = set()
        #: Stuck workers that were given up, until they end.
        self.left_behind: set[Worker] = set()

    def plans(self) -> dict[str, Place]:
        """Return the plans of the models that serve."""
        return {
            entry.name: entry.place
            for entry in self._models.values()
            if entry.place is not None and entry.serves
        }

    async def reach(self, target: PlanTarget) -> None:
        """Take the steps before that of a newcomer of ``target``; all, where there is none.

        Raises:
            As ``reopen``, of the first step that fails.
        """
        while (change := step(target, self.plans(), self._budget)) is not None:
            entry = self._models.get(change.name)
            if entry is None or entry.worker is None:
                return
            await self.reopen(entry, change.place)

    async def converge(self, target: PlanTarget, closed: Mapping[str, Prepared] = _NONE) -> None:
        """Take the steps to ``target``, as far as possible: a step that fails is not taken again.

        ``closed``: models that are opened again for it; others that have left service stay away.
        """
        entries = {name: self._models[name] for name in closed}
        again = {name for name, entry in entries.items() if not (entry.worker or entry.is_lost)}
        for name in again:
            self.keep_lost(name)
        while (change := step(target, self.plans(), self._budget)) is not None:
            target, entry = target.without(change.name), self._models[change.name]
            if entry.serves:
                await self.try_reopen(entry, change.place)
            elif change.name in again:
                await self._open_again(entry, closed[change.name], change.place)

    async def try_reopen(self, entry: Entry, place: Place, level: int = logging.INFO) -> None:
        """Open a loaded model again with another plan, if that is possible; ``level``: as of ``reopen``."""
        try:
            await self.reopen(entry, place, level)
        except Exception as exc:  # noqa: BLE001  it serves as before, or its state says why not
            if entry.serves:
                message = "model %s keeps the plan it has: %s"
                _log.warning(message, entry.name, exc, exc_info=traceable(exc))

    @uninterrupted
    async def reopen(self, entry: Entry, place: Place, level: int = logging.INFO) -> None:
        """Open a loaded model again with another plan, or if that fails as before, or else close it.

        ``level``: of its log line.
        """
        model, before, worker = entry.prepared, entry.place, entry.worker
        assert model is not None
        assert before is not None
        assert worker is not None
        if not await asyncio.to_thread(model.is_there):
            raise FilesChangedError(entry.name)
        planned = _change(before, place)
        _log.log(level, "model %s: planned again, %s", entry.name, planned, extra=attribution())
        try:
            await worker.reopen(
                partial(self._opener.reopen, entry.name, model, place),
                partial(self._opener.reopen, entry.name, model, before),
            )
        except Exception:
            # A worker that was given up as stuck is closed and replaced by ``Repository.restore``.
            if entry.fault is not None and not worker.abandoned:
                await self.close(entry, entry.fault)
            raise
        entry.move(place)

    async def open(self, entry: Entry, model: Prepared, place: Place) -> None:
        """Let ``entry``, which is not loaded, serve ``model``; raises as Opener.open."""
        entry.read()
        entry.serve(await self._opener.open(entry.name, model, place), model, place)

    async def open_beside(
        self, entry: Entry, model: Prepared, place: Place, key: str
    ) -> tuple[Worker, Uses]:
        """Let ``entry`` serve ``model``, which holds memory as ``key``; return the old worker to retire.

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

    async def retire(self, name: str, worker: Worker, uses: Uses, key: str) -> None:
        """Close ``worker``, which another one has replaced; that one then holds its memory as ``name``."""
        await uses.over(self._patience)
        lost = await self._ended(name, worker)
        if lost:
            _log.error("model %s: the memory of what it was stays reserved: %s", name, lost)
            self.keep_lost(name)
        else:
            self._budget.release(name)
        self._budget.rename(key, name)
        self._environment.trim_heap()

    async def _open_again(self, entry: Entry, model: Prepared, place: Place) -> None:
        """Let ``entry``, which is not loaded, serve the former ``model`` again, if its files are there."""
        try:
            if await asyncio.to_thread(model.is_there):
                await self.open(entry, model, place)
        except Exception as exc:  # noqa: BLE001  the caller gets the first error
            self.keep_lost(entry.name)
            entry.become(Unloaded.after(exc))
            message = "model %s cannot be served as before: %s"
            _log.warning(message, entry.name, exc, exc_info=traceable(exc))

    def keep_lost(self, key: str) -> None:
        """Move memory that an engine could not give back from ``key`` to another name, where it stays."""
        if key in self._budget.held():
            self._budget.set_apart(key, "lost")

    async def close(
        self,
        entry: Entry,
        why: Fault,
        cause: Absence = "failed",
        *,
        patiently: bool = False,
    ) -> None:
        """Let ``entry``, if it is loaded, finish its requests, and give its memory back.

        ``why``: its fault from then on. ``patiently``: also the requests that have found the model and are
        still being read.
        """
        worker = entry.worker
        entry.become(Unloaded(why, cause))
        if worker is None:
            return
        uses, entry.uses = entry.uses, Uses()
        # The requests of a stuck worker do not end, so they are not waited for.
        if patiently and not worker.abandoned:
            await uses.over(self._patience)
        lost = await self._ended(entry.name, worker)
        if lost:
            entry.become(Unloaded(lost, is_lost=True))
        else:
            self._budget.release(entry.name)
        self._environment.trim_heap()

    async def _ended(self, name: str, worker: Worker) -> Fault | None:
        """Close ``worker``; return why its memory can never be used again, None where it can.

        The disk may still write to the memory of a broken engine. That of a stuck one stays reserved under
        another name until it ends.
        """
        self.leaving.add(worker)
        try:
            await worker.close()
        except Exception as exc:  # noqa: BLE001  the other models go on
            _log.exception("model %s cannot be closed", name)
            return Fault(Code.ENGINE_FAILED, f"it could not be closed: {exc}")
        finally:
            self.leaving.remove(worker)
        if worker.abandoned:
            self._leave_behind(name, worker)
            return None
        return worker.served.lost

    def _leave_behind(self, name: str, worker: Worker) -> None:
        """Keep the memory of a stuck engine reserved until it ends, while ``name`` may be loaded again."""
        apart = self._budget.set_apart(name, "stuck")
        self.left_behind.add(worker)

        def wait() -> None:
            worker.wait()
            self.left_behind.discard(worker)
            if not worker.engine.broken:
                self._budget.release(apart)
                self._environment.trim_heap()

        self._environment.start_thread(f"left-{name}", wait)


def _change(before: Place, after: Place) -> str:
    sizes = (format_size(place.fitted.plan.total_bytes) for place in (before, after))
    turns = " in turns with others" if after.in_turns else ""
    return f"{' -> '.join(sizes)}{turns}"
