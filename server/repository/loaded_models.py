"""The loaded models as one set: planned together, changed one by one, put back where a change fails.

Invariant: a model's ``place`` is what its engine was opened with, and what the budget holds for it. Whoever
calls changes one thing at a time (repository.py).
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from models.errors import ModelError
from models.runtime.heap import trim_heap
from pipeline.devices.base import DeviceError
from pipeline.fitting.frontier import FrontierPoint
from pipeline.fitting.remembered import forget
from pipeline.fitting.wanted import Fitted
from pipeline.planning.plan import PlanError
from pipeline.profiles.profile_file import save_found
from server.errors import NotServingError, RefusedError
from server.memory.budget import Budget
from server.memory.sharing import Sharer, Shares, share_out
from server.repository.entry import Absence, Entry, Lost, Unloaded
from server.repository.opening import Opener, Prepared
from server.repository.planning_threads import PlanningThreads
from server.repository.replanning import Place, Places, check_within, growing, making_room
from server.repository.uninterrupted import to_its_end
from server.repository.worker import Worker
from server.settings.sizes import format_size

_log = logging.getLogger(__name__)

#: Yields the models that are served and not among these names: they keep their least. Blocks.
Absent = Callable[[Collection[str]], Iterator[Sharer]]


class LoadedModels:
    """Those of ``entries`` that are loaded."""

    def __init__(
        self, entries: Mapping[str, Entry], budget: Budget, opener: Opener, absent: Absent
    ) -> None:
        self._entries = entries
        self._budget = budget
        self._opener = opener
        self._absent = absent
        self.planning = PlanningThreads()

    async def admit(self, entry: Entry, folder: Path) -> bool:
        """Plan the model of ``entry`` with the others, make room, and open it; on an error undo that.

        Return whether others have changed. Raises as Repository.load.
        """
        name, loaded = entry.name, self._places()
        model = await self.planning.run(lambda: self._opener.prepare(name, folder))
        shares = await self.planning.run(lambda: self._planned([*loaded], (name, model)))
        own = shares.outcomes[len(loaded)]
        if not isinstance(own, Fitted):
            raise own or RefusedError(f"model {name!r} is not planned")
        place = Place.of(own, shares.in_turns)
        changes = making_room(place, loaded, _as_places(loaded, shares), self._budget)
        try:
            for other, smaller in changes.items():
                await self._reopen(self._entries[other], smaller)
            entry.serve(await self._opener.open(name, model, place), model, place)
        except BaseException:
            await to_its_end(self._restore({other: loaded[other] for other in changes}))
            raise
        return bool(changes)

    async def replan(self, entry: Entry, most_bytes: int | None) -> None:
        """Limit the memory of a loaded model; on an error it and all others stay as they are.

        Raises:
            As Repository.replan.
        """
        before = entry.most_bytes
        entry.limit(most_bytes)
        loaded = self._places()
        changes: dict[str, Place] = {}
        try:
            shares = await self.planning.run(lambda: self._planned([*loaded], None))
            planned = _as_places(loaded, shares)
            check_within(entry.name, planned[entry.name], most_bytes)
            others = {name: place for name, place in loaded.items() if name != entry.name}
            place, budget = planned[entry.name], self._budget.without([entry.name])
            changes = making_room(place, others, planned, budget)
            for other, smaller in changes.items():
                await self._reopen(self._entries[other], smaller)
            if not place.is_like(loaded[entry.name]):
                await self._reopen(entry, place)
        except BaseException:
            entry.limit(before)
            await to_its_end(self._restore({other: loaded[other] for other in changes}))
            raise

    async def close(self, entry: Entry, why: str, cause: Absence = "failed") -> None:
        """Let ``entry``, if it is loaded, finish its requests, and give its memory back.

        Runs to its end even when cancelled: what nobody can close any more would stay reserved.
        """
        worker = entry.worker
        if not isinstance(entry.condition, Lost):
            entry.condition = Unloaded(why, cause)
        if worker is None:
            return
        if worker.abandoned:
            self._leave_behind(entry.name, worker)
        else:
            await to_its_end(self._closed(entry, worker))

    def _leave_behind(self, name: str, worker: Worker) -> None:
        """Keep what a stuck engine holds reserved until it ends, beside what ``name`` takes anew."""
        apart = self._budget.set_apart(name)

        def wait() -> None:
            worker.wait()
            if not worker.engine.broken:
                self._budget.release(apart)
                trim_heap()

        # Nobody waits for it, the end of the process neither.
        threading.Thread(target=wait, name=f"left-{name}", daemon=True).start()

    async def _closed(self, entry: Entry, worker: Worker) -> None:
        try:
            await worker.close()
        except Exception as exc:  # noqa: BLE001  the other models go on
            _log.exception("model %s cannot be closed", entry.name)
            lost = f"it could not be closed: {exc}"
        else:
            # The memory of a broken engine is still the disk's: it stays reserved.
            lost = worker.engine.broken or worker.served.lost
        if lost:
            entry.condition = Lost(lost)
        else:
            self._budget.release(entry.name)
        trim_heap()

    async def grow(self) -> None:
        """Let the loaded models use what is free."""
        loaded = self._places()
        try:
            shares = await self.planning.run(lambda: self._planned([*loaded], None))
        except (NotServingError, ModelError, PlanError, DeviceError, RefusedError) as exc:
            _log.warning("models keep the plans they have: %s", exc)
            return
        planned = _as_places(loaded, shares)
        for name, larger in growing(loaded, planned, self._budget).items():
            await self._try_reopen(self._entries[name], larger)

    async def frontier(self, entry: Entry) -> list[FrontierPoint]:
        """Return the plans that the model of ``entry`` may have; raises as Repository.frontier."""
        model = entry.prepared
        assert model is not None

        def planned() -> list[FrontierPoint]:
            try:
                return self._opener.frontier(model)
            finally:
                forget()
                trim_heap()

        return await self.planning.run(planned)

    def _places(self) -> dict[str, Place]:
        """Return what the models that serve are planned as."""
        serving = (entry for entry in self._entries.values() if entry.serves)
        return {entry.name: entry.place for entry in serving if entry.place is not None}

    def _planned(self, loaded: Sequence[str], newcomer: tuple[str, Prepared] | None) -> Shares:
        """Plan the ``loaded`` models and ``newcomer``, behind whom others keep their least; blocks."""
        entries = [self._entries[name] for name in loaded]
        models = [entry.prepared for entry in entries]
        sharers = [
            entry.prepared.sharer.limited(entry.most_bytes)
            for entry in entries
            if entry.prepared is not None
        ]
        if newcomer is not None:
            name, model = newcomer
            models.append(model)
            sharers += [model.sharer, *self._absent({*loaded, name})]
        try:
            shares = share_out(
                sharers, self._budget.without(loaded), self._opener.activations, len(loaded)
            )
            save_found(model.profile for model in models if model is not None)
            return shares
        finally:  # before anybody takes what was planned
            forget()
            trim_heap()

    async def _reopen(self, entry: Entry, place: Place) -> None:
        """Have a loaded model served with another plan; runs to its end even when cancelled.

        Where it can be served neither so nor as before, it is closed.
        """
        await to_its_end(self._reopened(entry, place))

    async def _reopened(self, entry: Entry, place: Place) -> None:
        model, before, worker = entry.prepared, entry.place, entry.worker
        assert model is not None
        assert before is not None
        assert worker is not None
        _log.info("model %s: planned again, %s", entry.name, _change(before, place))
        try:
            await worker.reopen(
                partial(self._opener.reopen, entry.name, model, place),
                partial(self._opener.reopen, entry.name, model, before),
            )
        except Exception:
            if not entry.serves:
                await self.close(entry, entry.reason)
            raise
        entry.move(place)

    async def _restore(self, places: dict[str, Place]) -> None:
        """Give models back what they had, as far as they were changed."""
        for name in reversed(places):
            entry, place = self._entries[name], places[name]
            if entry.serves and entry.place is not place:
                await self._try_reopen(entry, place)

    async def _try_reopen(self, entry: Entry, place: Place) -> None:
        try:
            await self._reopen(entry, place)
        except Exception as exc:  # noqa: BLE001  it serves as it did, or has said why it does not
            if entry.serves:
                _log.warning("model %s keeps the plan it has: %s", entry.name, exc)


def _as_places(loaded: Places, shares: Shares) -> dict[str, Place]:
    """Return what the ``loaded`` models shall be; one that is not planned stays as it is."""
    return {
        name: Place.of(outcome, shares.in_turns) if isinstance(outcome, Fitted) else place
        for (name, place), outcome in zip(loaded.items(), shares.outcomes, strict=False)
    }


def _change(before: Place, after: Place) -> str:
    sizes = (format_size(place.fitted.plan.total_bytes) for place in (before, after))
    turns = " in turns with others" if after.in_turns else ""
    return f"{' -> '.join(sizes)}{turns}"
