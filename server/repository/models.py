"""The models: the state of each slot, and what is on disk of those that shall be served."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from typing import Any

from models.packs.pack import Pack
from pipeline.budget.budget import Budget
from pipeline.budget.holdings import Minimum, least_together
from pipeline.budget.sharing import Activations, Sharer
from pipeline.execution.errors import DeadlineError
from server.errors import AwayError, BusyError, NotFoundError, NotServingError, few, shown
from server.faults import FAILURES
from server.repository.entry import Entry, Serving, Use
from server.repository.model_config import FILE, ModelConfig
from server.repository.on_disk import Seen, Slot, model_names, slots
from server.settings.per_model import ALL, of_model
from server.settings.settings import Settings

_log = logging.getLogger(__name__)

# Settings that name models: those with values by model, and others.
_BY_MODEL = "workers", "deadline", "lanes", "preferred_lanes", "lane_delay"
_NAMING = *_BY_MODEL, "evictable", "deepstack_model"


class Models(dict[str, Entry]):
    """Entries by the names of their slots; on disk are those that the settings name, or all.

    ``least``: returns how much the pack in a slot needs at least.
    """

    def __init__(
        self, settings: Settings, budget: Budget, least: Callable[[Slot], Minimum]
    ) -> None:
        super().__init__()
        self._settings = settings
        self._budget = budget
        self._least = least
        #: The least memory of each slot, with the files of which that is true: only of the last version.
        self._minima: dict[str, tuple[Seen, Minimum]] = {}
        #: The slots of all models as they were when a start looked.
        self._scanned: Sequence[Slot] | None = None
        #: Ignored fields of configurations as the log named them last, by model.
        self._ignored: dict[str, str] = {}

    def known(self, slot: str, model: str) -> Entry:
        """Return the entry of ``slot``, which may be new."""
        deadline = of_model(self._settings.deadline, model, None)
        return self.setdefault(slot, Entry(slot, model, deadline=deadline))

    def of(self, model: str) -> list[Entry]:
        """Return the entries of ``model``, one or one for each version."""
        return [entry for entry in self.values() if entry.model == model]

    def note(self, model: str, exc: Exception) -> None:
        """Note the error ``exc`` of loading ``model`` as it is on disk now, if it is there at all.

        Where the whole repository is away, it is not known whether there is such a model.
        """
        entries = self.of(model)
        if isinstance(exc, NotFoundError) or (isinstance(exc, AwayError) and not entries):
            return
        for entry in entries or [self.known(model, model)]:
            entry.note(exc)

    def versions(self, model: str) -> list[str]:
        """Return the versions of ``model`` that answer, lowest first."""
        answering = [entry.slot for entry in self.of(model) if entry.answers]
        return sorted((slot.folder.name for slot in answering if slot is not None), key=_number)

    def find(self, name: str, version: str | None = None) -> Entry:
        """Return the entry that answers requests to ``version``, or to the latest that answers.

        Raises:
            NotFoundError: unknown name or version.
        """
        only = self.get(name)
        if only is not None and (version is None or only.version in {None, version}):
            return only
        candidates = self.of(name) if only is None else [only]
        if not candidates:
            raise NotFoundError(f"model {shown(name)}: not found")
        if version is not None:
            candidates = [each for each in candidates if each.version in {None, version}]
            if not candidates:
                raise NotFoundError(f"model {shown(name)}: version {shown(version)} not found")
        return max(candidates, key=lambda each: (each.answers, _number(each.version)))

    def use(self, name: str, version: str | None = None) -> Use | None:
        """Return a use that begins now, if the model is loaded; None: it is not, or there is no such one.

        Raises:
            As Entry.serving.
        """
        try:
            entry = self.find(name, version)
        except NotFoundError:
            return None
        return entry.use() if isinstance(entry.condition, Serving) else None

    def serving(self, name: str, version: str | None = None) -> tuple[Entry, Pack]:
        """Return the entry that answers now, and its pack.

        Raises:
            NotFoundError: unknown name or version, or unloaded by request. RefusedError, NotServingError:
                it is not loaded.
        """
        entry = self.find(name, version)
        return entry, entry.serving().prepared.pack

    def is_unloaded(self, model: str) -> bool:
        """Return whether a client has unloaded ``model``."""
        return any(entry.absence == "unloaded" for entry in self.of(model))

    def is_evicted(self, model: str) -> bool:
        """Return whether ``model`` is evicted: the next request will load it as it is on disk then."""
        entries = self.of(model)
        return bool(entries) and all(entry.evicted for entry in entries)

    # On disk

    def on_disk(self) -> list[str]:
        """Return the models in the repository, by name; NotFoundError where there is none."""
        return model_names(self._settings.repository)

    def names(self) -> list[str]:
        """Return the models that the settings name, or all on disk; raises as ``on_disk``."""
        return list(self._settings.models) or self.on_disk()

    def slots_of(self, model: str, config: ModelConfig | None = None) -> list[Slot]:
        """Return the slots of ``model`` as they are on disk; ``config``: as on_disk.slots; blocks.

        Raises:
            As on_disk.slots; NotServingError: no access, or a file system that is away.
        """
        try:
            return slots(self._settings.repository, model, config)
        except OSError as exc:
            where = f"{exc.filename}: " if exc.filename else ""
            raise NotServingError(f"model {model!r}: {where}{exc.strerror or exc}") from exc

    @contextlib.contextmanager
    def scanned(self, slots: Sequence[Slot]) -> Iterator[None]:
        """Take ``slots`` for those of all models meanwhile, for a caller that loads one after the other."""
        self._scanned = slots
        try:
            yield
        finally:
            self._scanned = None

    def slots(self) -> Iterator[Slot]:
        """Yield the slots of all models, as far as they can be read; blocks."""
        if self._scanned is not None:
            yield from self._scanned
            return
        for name in self.names():
            with contextlib.suppress(*FAILURES):  # loading it reports the error
                yield from self.slots_of(name)

    def set_aside(self, activations: Activations) -> None:
        """Take the memory of requests out of the budget, before models share the rest; blocks.

        Raises:
            RefusedError: there is not as much.
        """
        minimum_of_slots = [self.minimum(slot) for slot in self.slots()]
        minima = [minimum for minimum in minimum_of_slots if minimum is not None]
        together = least_together(minima, activations != "own")
        needs = [minimum.need for minimum in minima]
        self._budget.set_aside(self._settings.request_memory, needs, together)

    def absent(self, present: Collection[str]) -> Iterator[Sharer]:
        """Yield models that are not ``present`` and whose least memory is kept free for later; blocks.

        Models that a client has unloaded and those that can never come back are left out.
        """
        for slot in self.slots():
            entry = self.get(slot.name)
            stays_away = entry is not None and (entry.absence == "unloaded" or entry.is_lost)
            if slot.name not in present and not stays_away:
                least = self.least(slot)
                if least is not None:
                    yield least

    def minimum(self, slot: Slot) -> Minimum | None:
        """Return how much the pack in ``slot`` needs at least; None: it cannot be served. Blocks.

        The pack is opened for that once, and again after its files have changed.
        """
        seen, minimum = self._minima.get(slot.name, ((), None))
        if minimum is None or seen != slot.seen:
            try:
                minimum = self._least(slot)
            except FAILURES:  # loading it reports the error
                return None
            self._minima[slot.name] = slot.seen, minimum
        return minimum

    def least(self, slot: Slot) -> Sharer | None:
        """Return the pack in ``slot`` as a sharer of its least; None: it cannot be served. Blocks."""
        least = self.minimum(slot)
        if least is None or not least.has_room(self._budget.request_bytes):
            return None
        return Sharer(slot.name, least.memory, alone=least.alone)

    def fits_alone(self, slot: Slot) -> bool:
        """Return whether the pack in ``slot`` has room where no other model is loaded; blocks."""
        room = self._budget.total_bytes - self._budget.request_bytes
        least = self.minimum(slot)
        return least is None or sum(least.memory.values()) <= room

    # Settings and configurations without an effect

    def unknown(self) -> str:
        """Return which models settings name that are not among those to be served; raises as ``names``."""
        there = {ALL, "", *self.names()}
        said = []
        for setting in _NAMING:
            value = getattr(self._settings, setting)
            unknown = sorted(set([value] if isinstance(value, str) else value) - there)
            if unknown:
                listed = few(list(map(shown, unknown)))
                said.append(f"{setting}: not among the models that are served: {listed}")
        return "; ".join(said)

    def say_ignored(self, model: str, config: ModelConfig) -> None:
        """Log which fields of the configuration of ``model`` are ignored, if that has changed."""
        ignored = ", ".join(f"{name} (line {line})" for name, line in config.ignored.items())
        if self._ignored.get(model, "") != ignored:
            sentence = f"ignored: {ignored}" if ignored else "nothing of it is ignored any more"
            _log.info("model %s: %s: %s", model, FILE, sentence)
        self._ignored[model] = ignored


def _number(version: str | None) -> int:
    return int(version) if version is not None and version.isdecimal() else -1


# Requests that wait for a model which is away for a moment: it was evicted, or is being replaced.


class Arrivals:
    """Lets requests wait: at most ``limit`` for a model, all of them for one ``fetch`` of it.

    ``fetch`` loads an evicted model, and returns whether it did. These cold starts are counted.
    """

    def __init__(
        self,
        models: Models,
        fetch: Callable[[Entry], Coroutine[Any, Any, bool]],
        limit: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._fetch = fetch
        self._limit = limit
        self._clock = clock
        self._fetching: set[asyncio.Task[None]] = set()

    async def use(self, model: str, version: str | None, limit_seconds: float) -> Use:
        """Return a use of a model; as Repository.use."""
        until = self._clock() + limit_seconds
        while True:
            entry = self._models.find(model, version)
            if isinstance(entry.condition, Serving):
                return entry.use()
            uses = entry.uses
            uses.begin()
            try:
                await self._wait(entry, until)
                # It may have been loaded and evicted again, or another version may answer by now.
                has_come = uses is entry.uses and not entry.evicted
                if has_come and entry is self._models.find(model, version):
                    return entry.use()
            finally:
                uses.end()

    async def close(self) -> None:
        """Cancel all loads."""
        for task in self._fetching:
            task.cancel()
        if self._fetching:
            await asyncio.wait(self._fetching)

    async def _wait(self, entry: Entry, until: float) -> None:
        """Wait until the model of ``entry`` is there, if it is to come; raises the errors of its load."""
        if entry.coming is None and entry.evicted:
            self._send_for(entry)
        coming = entry.coming
        if coming is None:
            return
        if len(entry.uses) > self._limit:
            raise BusyError(
                f"model {entry.name!r}: {self._limit} requests wait for it to be loaded"
            )
        done, _ = await asyncio.wait({coming}, timeout=max(until - self._clock(), 0))
        if not done:
            raise DeadlineError(f"model {entry.name!r} was not loaded again in time")
        if coming.cancelled():
            raise NotServingError("the server is stopping")
        coming.result()

    def _send_for(self, entry: Entry) -> None:
        task = asyncio.create_task(self._timed(entry))
        coming = entry.coming = asyncio.get_running_loop().create_future()
        self._fetching.add(task)

        def ended(task: "asyncio.Task[None]") -> None:
            self._fetching.discard(task)
            exc = None if task.cancelled() else task.exception()
            if entry.coming is not coming:  # it was loaded, and the requests were told
                return
            entry.coming = None
            if task.cancelled():
                coming.cancel()
            elif exc is None:
                coming.set_result(None)
            else:
                coming.set_exception(exc)
                coming.exception()  # else asyncio logs an error that no request waits for

        task.add_done_callback(ended)

    async def _timed(self, entry: Entry) -> None:
        began = self._clock()
        if await self._fetch(entry):
            entry.cold_starts += 1
            entry.cold_start_seconds += self._clock() - began
