"""Shares the budget between the models that are loaded: one comes, is replaced, limited, evicted, all grow.

Each change is decided over the fleet (fleet.py) on a planning thread, and carried out step by step
(executor.py). A new model takes memory that others have beyond their least; where that is not enough and
settings allow it, others are evicted. A model whose files have changed replaces its former version, and no
request is lost. Calls never overlap: reconciling.py has one change made at a time.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TypeVar

from models.sizes import format_size
from pipeline.budget.budget import Budget
from pipeline.budget.errors import RefusedError
from pipeline.budget.sharing import Activations, Sharer
from pipeline.program.stopping import telling
from server.causes import attribution, because
from server.errors import FilesChangedError, NotServingError
from server.faults import FAILURES, Code, Fault
from server.repository.catalog import Catalog
from server.repository.entry import Entry, Loading, Unloaded
from server.repository.environment import RepositoryEnvironment
from server.repository.executor import Executor
from server.repository.fleet import Fleet, FleetTarget, Member, gaining
from server.repository.instances import Instance
from server.repository.models import Models
from server.repository.on_disk import Slot
from server.repository.planning_threads import PlanningThreads, SearchProgress
from server.repository.preparing import Prepared, Preparer
from server.settings.per_model import ALL
from server.settings.settings import Settings

_log = logging.getLogger(__name__)

_REPLACED = Fault(Code.NOT_SERVING, "its pack is being replaced", permanent=False)

T = TypeVar("T")


class Balancer:
    """Loads, replaces and limits ``models``.

    ``grow_later``: called when models may use memory that is free now.
    """

    def __init__(
        self,
        models: Models,
        *,
        catalog: Catalog,
        budget: Budget,
        preparer: Preparer,
        executor: Executor,
        environment: RepositoryEnvironment,
        planning: PlanningThreads,
        grow_later: Callable[[], None],
        activations: Activations,
        settings: Settings,
    ) -> None:
        self._models = models
        self._catalog = catalog
        self._budget = budget
        self._preparer = preparer
        self._executor = executor
        self._environment = environment
        self._activations = activations
        self._evictable = settings.evictable
        self._is_first_come = settings.budget_policy == "refuse"
        self._planning = planning
        self._grow_later = grow_later
        #: How far the search for new plans of the loaded models is; None: there is none.
        self.search: SearchProgress | None = None

    async def bring(self, slot: Slot, evicts: bool) -> None:
        """Load the pack in ``slot``, in place of its former version if there is one.

        ``evicts``: where it does not fit, others are evicted. Raises as Repository.load.
        """
        entry = self._models.known(slot.name, slot.model)
        if entry.has(slot):
            return
        if not entry.serves:
            with entry.coming_back() if entry.evicted else contextlib.nullcontext():
                await self._anew(entry, slot, evicts)
            self._log_loaded(entry, "")
            return
        before = entry.version
        try:
            await self._replace(entry, slot, evicts)
        except Exception as exc:
            if isinstance(entry.condition, Unloaded):  # the former version is not there any more
                entry.become(Unloaded.after(exc))
            raise
        self._log_loaded(entry, f" in place of {before}")

    def _log_loaded(self, entry: Entry, instead: str) -> None:
        memory = format_size(entry.fitted.plan.total_bytes) if entry.fitted else "no memory"
        version = f"version {entry.version}{instead}"
        _log.info("model %s: loaded, %s, %s", entry.name, version, memory, extra=attribution())

    async def _anew(self, entry: Entry, slot: Slot, evicts: bool) -> None:
        """Load the pack in ``slot`` for ``entry``, which does not serve."""
        was_evicted = entry.evicted
        assert entry.fault is not None
        # A model that has left service holds its memory until here.
        await self._executor.close(entry, entry.fault)
        if entry.is_lost:
            raise NotServingError(f"{entry.message}; restart the server")
        loading = Loading()
        entry.become(loading)
        entry.take(slot)
        try:
            with telling(loading.progress):
                async with self._or_as_before():
                    # Room is made before the model is prepared, which takes memory, too.
                    if evicts:
                        await self._make_room(slot)
                    await self._come(entry, await self._prepared(slot))
        except Exception as exc:
            entry.become(Unloaded.after(exc, was_evicted=was_evicted))
            if isinstance(exc, RefusedError):
                entry.refusals += 1
            raise

    @contextlib.asynccontextmanager
    async def _or_as_before(self, *closed: Entry) -> AsyncIterator[None]:
        """Let models have the plans again that they have now, if what is done inside fails.

        ``closed``: what may be closed inside, and then serves again; others that went stay away.
        """
        before = FleetTarget(self._executor.plans())
        packs = {entry.name: entry.prepared for entry in closed if entry.prepared is not None}
        try:
            yield
        except Exception:
            await self._executor.converge(before, packs)
            raise

    async def _come(self, entry: Entry, model: Prepared) -> Instance | None:
        """Let others shrink for ``model``, and ``entry`` serve it; return as Executor.open.

        A model whose files have changed meanwhile cannot shrink: it stays as it is, and a new decision is
        made.
        """

        async def decide() -> FleetTarget:
            return await self._coming(await self._fleet(), entry.next_key, model)

        before = self._executor.plans()
        with because(f"model {model.slot.name} comes"):
            target = await self._reached(decide)
        assert target.first is not None
        place, has_changed = target.first.place, self._executor.plans() != before
        former = await self._executor.open(entry, model, place)
        if has_changed or place.fitted.heuristic:
            self._grow_later()
        return former

    async def _reached(self, decide: Callable[[], Awaitable[FleetTarget]]) -> FleetTarget:
        """Return the target that ``decide`` returns, when it is reached but for a newcomer."""
        while True:
            target = await decide()
            with contextlib.suppress(FilesChangedError):  # of one that was to shrink: it stays
                await self._executor.reach(target)
                return target

    async def _replace(self, entry: Entry, slot: Slot, evicts: bool) -> None:
        """Serve the pack in ``slot`` in place of the one that ``entry`` serves now; no request is lost.

        Where there is room for both, it is opened beside the old one, and takes new requests from then on.
        Otherwise the old one finishes its requests first, and new ones wait. After an error the old one
        serves on.
        """
        model = await self._prepared(slot)
        try:
            async with self._or_as_before():
                before = await self._come(entry, model)
        except RefusedError:
            if not entry.serves:  # it left service when it was opened again with a smaller plan
                raise
            await self._replace_in_turn(entry, model, evicts)
            return
        if before is not None:
            await self._executor.retire(entry, before)

    async def _replace_in_turn(self, entry: Entry, model: Prepared, evicts: bool) -> None:
        """Close the pack that ``entry`` serves, then open ``model``; requests that come meanwhile wait."""
        others = (await self._fleet()).without(entry.name)
        try:
            await self._coming(others, entry.name, model)
        except RefusedError:
            if not evicts or await self._evictions(others, model.slot) is None:
                raise
        with entry.coming_back():
            async with self._or_as_before(entry):
                await self._executor.close(entry, _REPLACED, patiently=True)
                if entry.is_lost:
                    raise NotServingError(f"{entry.message}; restart the server")
                if evicts:
                    await self._make_room(model.slot)
                await self._come(entry, model)

    async def _make_room(self, slot: Slot) -> None:
        """Evict the models without which the pack in ``slot`` fits."""
        with because(f"model {slot.name} comes"):
            await self._executor.reach(
                await self._evictions(await self._fleet(), slot) or FleetTarget()
            )

    async def replan(self, entries: Sequence[Entry], most_bytes: int | None) -> None:
        """Limit the memory of each of ``entries``, which are loaded; on an error all stay as they are.

        Raises:
            As Repository.replan.
        """
        before = [entry.most_bytes for entry in entries]
        try:
            for entry in entries:
                entry.most_bytes = most_bytes
            async with self._or_as_before():
                for entry in entries:
                    await self._limit(entry)
        except Exception:
            for entry, most in zip(entries, before, strict=True):
                entry.most_bytes = most
            raise
        self._grow_later()

    async def _limit(self, entry: Entry) -> None:
        """Let ``entry`` keep its limit."""

        async def decide() -> FleetTarget:
            entry.serving()
            fleet = await self._fleet()
            return await self._searched(partial(fleet.limited, entry.name, entry.most_bytes))

        await self._reached(decide)

    async def relieve(self, *, evicts: bool) -> None:
        """Let models hold no more than the ceiling of the budget, as far as they can.

        What is cheapest to have again goes first, and no more than needed: free memory of the heap; idle
        models, the longest unused first, where it ``evicts``; what models hold beyond smaller plans; then
        models in use, after their requests. One that is pinned, or may not go, keeps its least.
        """
        with because("the system lacks memory", by_server=True):
            await asyncio.to_thread(self._environment.trim_heap)
            stages: list[Callable[[Fleet], FleetTarget]] = [Fleet.smaller]
            if evicts:
                stages = [partial(Fleet.fewer, is_used=False), Fleet.smaller, Fleet.fewer]
            for stage in stages:
                if self._budget.free_bytes >= 0:
                    return
                fleet = await self._fleet()
                try:
                    target = await self._decided(partial(stage, fleet))
                except FAILURES as exc:
                    _log.warning("memory is not given back: %s", exc)
                    continue
                await self._executor.converge(target, until=lambda: self._budget.free_bytes >= 0)

    async def grow(self) -> None:
        """Let the loaded models use free memory, each with the best plan that a search finds."""
        try:
            target = await self._searched((await self._fleet()).best)
        except FAILURES as exc:
            _log.warning("models keep the plans they have: %s", exc)
            return
        await self._executor.converge(gaining(target, self._executor.plans()))
        for name, place in target.plans.items():
            entry = self._models[name]
            if entry.instance is not None and place.is_like(entry.instance.place):
                # The search confirms its plan, which was made by rules of thumb.
                entry.instance.place = place

    async def _fleet(self) -> Fleet:
        """Return the models that are loaded now."""
        models = {entry.name: entry.prepared for entry in self._models.values() if entry.prepared}
        there = await self._planning.run(lambda: {name: models[name].is_there() for name in models})
        changed = [name for name, is_there in there.items() if not is_there]
        return Fleet(self._budget.without(()), dict(self._members(changed)), self._activations)

    def _members(self, changed: Collection[str]) -> Iterator[tuple[str, Member]]:
        """Yield the loaded models by name; the files of those ``changed`` are not the same any more."""
        for entry in self._models.values():
            model, place = entry.prepared, entry.place
            if model is None or place is None:
                continue
            serves = entry.serves
            yield (
                entry.name,
                Member(
                    model.sharer.limited(entry.most_bytes),
                    # A model that has left service answers no requests, so it goes first.
                    entry.uses.used_at if serves else -math.inf,
                    place,
                    is_used=serves and len(entry.uses) > 0,
                    may_go=not serves
                    or (
                        not model.sharer.is_pinned
                        and bool({entry.model, ALL}.intersection(self._evictable))
                    ),
                    stays=not serves or entry.name in changed,
                    serves=serves,
                ),
            )

    async def _prepared(self, slot: Slot) -> Prepared:
        """Return the model in ``slot``, ready to be planned; raises as Preparer.prepare."""
        return await self._planning.run(lambda: self._preparer.prepare(slot))

    async def _coming(self, fleet: Fleet, key: str, model: Prepared) -> FleetTarget:
        """Return as Fleet.coming."""
        newcomer = model.sharer.limited(self._models[model.slot.name].most_bytes)
        claimed = self._claims(model.slot.name)
        others = {*fleet.places, model.slot.name, *self._models.withdrawn()}
        others.update(slot.name for slot in claimed)

        def coming() -> FleetTarget:
            minima = (self._catalog.least(slot) for slot in claimed if slot.is_as_seen())
            claims = [minimum for minimum in minima if minimum is not None]
            return fleet.coming(key, newcomer, self._catalog.others(others), claims)

        return await self._decided(coming, model)

    def _claims(self, newcomer: str) -> list[Slot]:
        """Return what was admitted before the slot ``newcomer`` and is closed, since it was idle.

        Where no model may take the memory of another, none takes theirs.
        """
        if not self._is_first_come:
            return []
        closed = [entry for entry in self._models.values() if entry.evicted]
        return [entry.slot for entry in closed if entry.slot and entry.name != newcomer]

    async def _evictions(self, fleet: Fleet, slot: Slot) -> FleetTarget | None:
        """Return the target where the pack in ``slot`` fits, since others are gone; None: it does not."""
        others = {*fleet.members, slot.name, *self._models.withdrawn()}

        def chosen() -> FleetTarget | None:
            newcomer: Sharer | None = self._catalog.least(slot)
            if newcomer is None:
                return None
            return fleet.evictions(newcomer, self._catalog.others(others))

        return await self._planning.run(chosen)

    async def _searched(self, decide: Callable[[], T]) -> T:
        """Return the result of ``decide``; meanwhile ``search`` says how far it is."""
        self.search = search = SearchProgress()
        try:
            with telling(search):
                return await self._decided(decide)
        finally:
            self.search = None

    async def _decided(self, decide: Callable[[], T], *newcomers: Prepared) -> T:
        """Return the result of ``decide``, which plans the loaded models and ``newcomers``."""
        loaded = [entry.prepared for entry in self._models.values() if entry.serves]
        models = [model for model in (*loaded, *newcomers) if model is not None]

        def decided() -> T:
            started = time.monotonic()
            try:
                decision = decide()
                for model in models:
                    # A pack that is being removed or replaced gets no new file.
                    if not model.known.is_saved and model.is_there():
                        model.known.save()
                return decision
            finally:  # before models are opened with the plans
                self._environment.give_back(time.monotonic() - started)

        return await self._planning.run(decided)
