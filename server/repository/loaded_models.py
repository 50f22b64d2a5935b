"""The loaded models as one set: planned together, changed one by one, put back where a change fails.

Invariant: a model's ``place`` is what its engine was opened with, and what the budget holds for it. Whoever
calls changes one thing at a time (repository.py).
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from models.runtime.heap import give_back
from pipeline.fitting.wanted import Fitted
from pipeline.program.program import letting_go
from pipeline.program.stopping import Tell, telling
from server.errors import RefusedError
from server.failures import FAILURES
from server.memory.budget import Budget
from server.memory.sharing import Sharer, Shares, share_out
from server.repository.closing import Closing
from server.repository.entry import Entry
from server.repository.layout.seen import is_still
from server.repository.layout.slots import Slot
from server.repository.opening import Opener
from server.repository.planning.planning_threads import PlanningThreads, Progress
from server.repository.planning.preparing import Prepared, Preparer
from server.repository.replanning import Change, Place, Places, check_within, growing, making_room
from server.repository.uses import Uses
from server.requests.uninterrupted import to_its_end
from server.settings.sizes import format_size

_log = logging.getLogger(__name__)

#: Yields the models that are served and not among these names: they keep their least. Blocks.
Absent = Callable[[Collection[str]], Iterator[Sharer]]


class LoadedModels:
    """Those of ``entries`` that are loaded."""

    def __init__(
        self,
        entries: Mapping[str, Entry],
        budget: Budget,
        preparer: Preparer,
        opener: Opener,
        closing: Closing,
        absent: Absent,
    ) -> None:
        self._entries = entries
        self._budget = budget
        self._preparer = preparer
        self._opener = opener
        self._closing = closing
        self._absent = absent
        self.planning = PlanningThreads()
        #: How far the search is for plans in place of those that models have; None: there is none.
        self.search: Progress | None = None

    async def prepared(self, slot: Slot) -> Prepared:
        """Return what is in ``slot``, ready to be admitted; raises as Preparer.prepare."""
        return await self.planning.run(lambda: self._preparer.prepare(slot))

    async def admit(self, entry: Entry, model: Prepared, key: str = "") -> bool:
        """Plan ``model`` with the loaded ones, make room, have ``entry`` serve it; on an error undo that.

        ``key``: under which its memory is reserved; empty: as ``entry``. Return whether there may be better
        plans: others have changed, or it is planned by rules of thumb. Raises as Repository.load.
        """
        loaded, key = self.places(), key or entry.name
        place, changes = await self.room(model, loaded, key)
        try:
            for other, smaller in changes:
                await self._reopen(self._entries[other], smaller)
            entry.read()
            worker = await self._opener.open(key, model, place)
        except BaseException:
            await to_its_end(self._restore({other: loaded[other] for other, _ in changes}))
            raise
        if entry.worker is not None:
            entry.uses = Uses()
        entry.serve(worker, model, place)
        return bool(changes) or place.fitted.by_thumb

    async def room(self, model: Prepared, loaded: Places, key: str) -> tuple[Place, list[Change]]:
        """Return what ``model`` shall be at once beside the ``loaded``, and which of these change before.

        What is not among the loaded, and is called as ``key``, counts for gone.

        Raises:
            RefusedError: it does not fit. Otherwise why it cannot be planned.
        """
        shares = await self.planning.run(lambda: self._planned([*loaded], (key, model)))
        own = shares.outcomes[len(loaded)]
        if not isinstance(own, Fitted):
            raise own or RefusedError(f"model {model.slot.name!r} is not planned")
        place, room = Place.of(own, shares.in_turns), self._budget.without([key])
        planned = _as_places(loaded, shares) | self._replaced_on_disk(loaded)
        return place, making_room(place, loaded, planned, room)

    async def replan(self, entry: Entry, most_bytes: int | None) -> None:
        """Limit the memory of a loaded model at once; on an error it and all others stay as they are.

        Raises:
            As Repository.replan.
        """
        before, entry.most_bytes = entry.most_bytes, most_bytes
        loaded = self.places()
        changes: list[Change] = []
        try:
            shares = await self._searched(lambda: self._planned([*loaded], None))
            planned = _as_places(loaded, shares) | self._replaced_on_disk(loaded)
            check_within(entry.name, planned[entry.name], most_bytes)
            others = {name: place for name, place in loaded.items() if name != entry.name}
            place, budget = planned[entry.name], self._budget.without([entry.name])
            changes = making_room(place, others, planned, budget)
            for other, smaller in changes:
                await self._reopen(self._entries[other], smaller)
            if not place.is_like(loaded[entry.name]):
                await self._reopen(entry, place)
        except BaseException:
            entry.most_bytes = before
            await to_its_end(self._restore({other: loaded[other] for other, _ in changes}))
            raise

    async def grow(self) -> None:
        """Let the loaded models use what is free, each in the best plan that a search finds."""
        loaded = self.places()
        try:
            work = partial(self._planned, [*loaded], None, at_once=False)
            shares = await self._searched(work)
        except FAILURES as exc:
            _log.warning("models keep the plans they have: %s", exc)
            return
        planned = _as_places(loaded, shares) | self._replaced_on_disk(loaded)
        for name, better in growing(loaded, planned, self._budget).items():
            await self._try_reopen(self._entries[name], better)
        for name, place in planned.items():
            entry = self._entries[name]
            if entry.place is not None and place.is_like(entry.place):
                entry.move(place)  # the best there is was found by rules of thumb

    async def frontier(self, entry: Entry, heard: Tell) -> list[dict[str, Any]]:
        """Return the plans that the model of ``entry`` may have; raises as Repository.frontier."""
        model = entry.prepared
        assert model is not None

        def planned() -> list[dict[str, Any]]:
            try:
                with telling(heard), letting_go(model.program):
                    return self._preparer.frontier(model)
            finally:
                give_back()

        return await self.planning.run(planned)

    async def _searched(self, work: Callable[[], Shares]) -> Shares:
        """Return what ``work`` finds; meanwhile ``search`` says how far it is."""
        self.search = search = Progress()
        try:
            with telling(search):
                return await self.planning.run(work)
        finally:
            self.search = None

    def sharer(self, name: str) -> Sharer:
        """Return the loaded model ``name`` as one of a set, as small as it can become."""
        entry = self._entries[name]
        place, model = entry.place, entry.prepared
        assert place is not None
        assert model is not None
        if not entry.serves or name in self._replaced_on_disk({name: place}):
            return replace(model.sharer, least=place.fitted.plan.memory)
        return model.sharer

    def _replaced_on_disk(self, loaded: Places) -> dict[str, Place]:
        """Return those of ``loaded`` that stay as they are: their weights could not be opened again."""
        models = {name: self._entries[name].prepared for name in loaded}
        return {
            name: loaded[name]
            for name, model in models.items()
            if model and not is_still(model.slot.seen, model.pack.weights_path)
        }

    def places(self) -> dict[str, Place]:
        """Return what the models that serve are planned as."""
        serving = (entry for entry in self._entries.values() if entry.serves)
        return {entry.name: entry.place for entry in serving if entry.place is not None}

    def _limited(self, model: Prepared) -> Sharer:
        """Return ``model`` with the limit that was set for what it is served as."""
        return model.sharer.limited(self._entries[model.slot.name].most_bytes)

    def _planned(
        self, loaded: Sequence[str], newcomer: tuple[str, Prepared] | None, at_once: bool = True
    ) -> Shares:
        """Plan the ``loaded`` models and ``newcomer``, behind whom others keep their least; blocks.

        ``at_once``: what would take long to find is planned by rules of thumb.
        """
        prepared = [self._entries[name].prepared for name in loaded]
        models = [model for model in prepared if model is not None]
        absent: Iterable[Sharer] = ()
        if newcomer is not None:
            models.append(newcomer[1])
            absent = self._absent({*loaded, newcomer[1].slot.name})
        sharers = [*map(self._limited, models), *absent]
        if at_once:
            sharers = [each.hurried() for each in sharers]
        room = self._budget.without([*loaded, *(newcomer or ())[:1]])
        try:
            shares = share_out(sharers, room, self._opener.activations, len(loaded))
            for model in models:
                # What somebody removes or replaces now gets no new file.
                if is_still(model.slot.seen, model.pack.weights_path):
                    model.known.save()
            return shares
        finally:  # before anybody takes what was planned
            give_back()

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
            # Who gave up what is stuck closes it, and brings another in its place.
            if not entry.serves and not worker.abandoned:
                await self._closing.close(entry, entry.reason)
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
