"""Takes steps: opens instances, opens them again with other plans, evicts and closes them.

Invariant: the ``place`` of an instance is the plan with which its engine was opened, and for which the
budget holds memory. Memory of an engine that cannot be closed stays reserved. Calls never overlap:
reconciling.py applies one change at a time.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from models.sizes import format_size
from pipeline.budget.budget import Budget
from pipeline.execution.errors import DrainError
from pipeline.execution.shielded import run_to_completion
from server.causes import attribution
from server.errors import FilesChangedError
from server.faults import Code, Fault, traceable
from server.repository.entry import Absence, Entry, Unloaded
from server.repository.environment import RepositoryEnvironment
from server.repository.fleet import Evict, FleetTarget, Place, step
from server.repository.instances import Instance, State, Uses
from server.repository.models import Models
from server.repository.opening import Opener
from server.repository.preparing import Prepared
from server.repository.worker import Worker

_log = logging.getLogger(__name__)

_NONE: Mapping[str, Prepared] = MappingProxyType({})
_EVICTED = Fault(Code.NOT_SERVING, "evicted; the next request loads it again", permanent=False)


class Executor:
    """Changes the instances of ``models``, within ``budget``.

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
        #: All that hold memory.
        self.instances: set[Instance] = set()

    def plans(self) -> dict[str, Place]:
        """Return the plans of the models that serve."""
        return {
            entry.name: entry.place
            for entry in self._models.values()
            if entry.place is not None and entry.serves
        }

    async def reach(self, target: FleetTarget) -> None:
        """Take the steps before that of a newcomer of ``target``; all, where there is none.

        Raises:
            As ``reopen``, of the first step that fails.
        """
        while (change := step(target, self.plans(), self._budget)) is not None:
            entry = self._models.get(change.name)
            if isinstance(change, Evict):
                target = target.without(change.name)
                await self._evict(self._models[change.name])
            elif entry is None or entry.instance is None:
                return
            else:
                await self.reopen(entry, change.place)

    async def converge(
        self,
        target: FleetTarget,
        closed: Mapping[str, Prepared] = _NONE,
        until: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take the steps to ``target``, as far as possible: a step that fails is not taken again.

        ``closed``: models that are opened again for it; others that have left service stay away.
        ``until``: no more steps are taken once it is true.
        """
        for name, model in closed.items():
            self._forsake(self._models[name], model)
        while not until() and (change := step(target, self.plans(), self._budget)) is not None:
            target, entry = target.without(change.name), self._models[change.name]
            if isinstance(change, Evict):
                await self._evict(entry)
            elif entry.serves:
                await self.try_reopen(entry, change.place)
            elif change.name in closed and isinstance(entry.condition, Unloaded):
                await self._open_again(entry, closed[change.name], change.place)

    async def try_reopen(self, entry: Entry, place: Place, level: int = logging.INFO) -> None:
        """Open a loaded model again with another plan, if that is possible; ``level``: as of ``reopen``."""
        try:
            await self.reopen(entry, place, level)
        except Exception as exc:  # noqa: BLE001  it serves as before, or its state says why not
            if entry.serves:
                message = "model %s keeps the plan it has: %s"
                _log.warning(message, entry.name, exc, exc_info=traceable(exc))

    async def reopen(self, entry: Entry, place: Place, level: int = logging.INFO) -> None:
        """Open a loaded model again with another plan, or if that fails as before, or else close it.

        ``level``: of its log line. It is not interrupted where growth, or a race, is cancelled.
        """
        await run_to_completion(self._reopen(entry, place, level))

    async def _reopen(self, entry: Entry, target: Place, level: int) -> None:
        instance = entry.instance
        assert instance is not None
        assert instance.worker is not None
        model, before, worker = instance.prepared, instance.place, instance.worker
        if not await asyncio.to_thread(model.is_there):
            raise FilesChangedError(entry.name)
        planned = _change(before, target)
        _log.log(level, "model %s: planned again, %s", entry.name, planned, extra=attribution())
        try:
            await worker.reopen(
                partial(self._opener.reopen, entry.name, model, target),
                partial(self._opener.reopen, entry.name, model, before),
            )
        except Exception:
            # One that is stuck is closed and replaced by ``Repository.restore``.
            if instance.state is State.FAILED and entry.fault is not None:
                await self.close(entry, entry.fault)
            raise
        instance.place = target

    async def open(self, entry: Entry, model: Prepared, place: Place) -> Instance | None:
        """Let ``entry`` serve ``model``; return the instance that it had, which is to be retired.

        Raises:
            As Opener.open; then it is as before, but if memory is lost of which it had none before.
        """
        before, condition = entry.instance, entry.condition
        instance = Instance(entry.next_key, model, place, Uses() if before else entry.uses)
        self.instances.add(instance)
        if before is None:
            entry.become(instance)
        try:
            instance.serve(await self._opener.open(instance.key, model, place))
        except DrainError as exc:
            instance.lose(Fault.of(exc).settled)
            if before is not None:
                self._rename(instance)
            raise
        except BaseException:
            self._closed(instance)
            entry.condition = condition
            raise
        entry.serve(instance)
        return before

    async def retire(self, entry: Entry, before: Instance) -> None:
        """Close ``before``, which another instance has replaced; that one then has its place."""
        await self._end(before, patiently=True)
        if before.state is State.LOST:
            message = "model %s: the memory of what it was stays reserved: %s"
            _log.error(message, entry.name, before.fault)
            self._rename(before)
        if entry.instance is not None:
            self._budget.rename(entry.instance.key, entry.name)
            entry.instance.key = entry.name

    async def _open_again(self, entry: Entry, model: Prepared, place: Place) -> None:
        """Let ``entry``, which is not loaded, serve the former ``model`` again, if its files are there."""
        try:
            if await asyncio.to_thread(model.is_there):
                await self.open(entry, model, place)
        except Exception as exc:  # noqa: BLE001  the caller gets the first error
            self._forsake(entry)
            entry.become(Unloaded.after(exc))
            message = "model %s cannot be served as before: %s"
            _log.warning(message, entry.name, exc, exc_info=traceable(exc))

    def _forsake(self, entry: Entry, but: Prepared | None = None) -> None:
        """Let ``entry`` have another instance than the one whose memory is lost.

        ``but``: unless that was lost with this.
        """
        lost = entry.condition
        if isinstance(lost, Instance) and lost.state is State.LOST and lost.prepared is not but:
            self._rename(lost)
            assert lost.fault is not None
            entry.condition = Unloaded(lost.fault)

    def _rename(self, instance: Instance, reason: str = "lost") -> None:
        """Have ``instance`` hold its memory under another name, where it stays."""
        instance.key = self._budget.set_apart(instance.key, reason)

    async def _evict(self, entry: Entry) -> None:
        """Close ``entry``, whose memory another model needs; the next request to it loads it again."""
        log_gone(entry, "evicted")
        if entry.fault is None:
            await self.close(entry, _EVICTED, "evicted", patiently=True)
            entry.evictions += 1
        else:
            await self.close(entry, entry.fault, "evicted" if entry.may_pass else "failed")

    async def close(
        self,
        entry: Entry,
        fault: Fault,
        cause: Absence = "failed",
        *,
        patiently: bool = False,
    ) -> None:
        """Let ``entry``, if it is loaded, finish its requests, and give its memory back.

        ``fault``: why it does not answer from then on. ``patiently``: also the requests that have found the
        model and are still being read.
        """
        instance = entry.leave(fault, cause)
        if instance is not None:
            await self._end(instance, patiently=patiently)
            if instance.state is State.LOST:
                entry.become(instance)

    async def _end(self, instance: Instance, *, patiently: bool) -> None:
        """Let ``instance`` finish its requests, and close it, if it can be; then it holds nothing.

        The disk may still write to the memory of a broken engine. That of a stuck one stays reserved under
        another name until it ends, while its model may be loaded again.
        """
        name, worker = instance.prepared.slot.name, instance.drain()
        # The requests of a stuck worker do not end, so they are not waited for.
        if not worker.abandoned:
            await instance.uses.over(self._patience, in_parts=not patiently)
        lost = None
        try:
            await worker.close()
        except Exception as exc:  # noqa: BLE001  the other models go on
            lost = _not_closed(name, exc)
        if worker.abandoned and lost is None:
            self._rename(instance, "stuck")
            work = partial(self._wait_for, instance, worker)
            self._environment.start_thread(f"left-{name}", work)
        else:
            self._finish(instance, lost or worker.served.lost)
        self._environment.trim_heap()

    def _wait_for(self, instance: Instance, worker: Worker) -> None:
        """Wait until what runs in a stuck ``instance`` ends, and close it; blocks."""
        try:
            worker.wait()
            lost = worker.served.lost
        except Exception as exc:  # noqa: BLE001  nobody waits for this thread
            lost = _not_closed(instance.prepared.slot.name, exc)
        self._finish(instance, lost)
        self._environment.trim_heap()

    def _finish(self, instance: Instance, lost: Fault | None) -> None:
        """Give back what ``instance`` holds, where nothing runs any more, unless that is ``lost``."""
        if lost is not None:
            instance.lose(lost)
        else:
            self._budget.release(instance.key)
            self._closed(instance)

    def _closed(self, instance: Instance) -> None:
        instance.close()
        self.instances.discard(instance)


def log_gone(entry: Entry, how: str) -> None:
    """Log that ``entry``, if it is loaded or would come back, is served no longer: ``how`` it went."""
    if entry.instance is not None or entry.evicted:
        _log.info("model %s: %s", entry.name, how, extra=attribution())


def _not_closed(name: str, exc: Exception) -> Fault:
    """Log, and return, why the engine of the model ``name`` holds its memory for ever."""
    _log.error("model %s cannot be closed", name, exc_info=exc)
    return Fault(Code.ENGINE_FAILED, f"it could not be closed: {exc}")


def _change(before: Place, after: Place) -> str:
    sizes = (format_size(place.fitted.plan.total_bytes) for place in (before, after))
    turns = " in turns with others" if after.in_turns else ""
    return f"{' -> '.join(sizes)}{turns}"
