"""From a folder to a model that can be planned: its pack as the device runs it, and its profile."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.packs.pack import Pack
from pipeline.budget.budget import Budget, check_requests
from pipeline.budget.errors import RefusedError
from pipeline.budget.holdings import Minimum
from pipeline.budget.request_needs import short_infer_bytes
from pipeline.budget.sharing import Sharer
from pipeline.devices.base import DeviceMemoryError
from pipeline.fitting.judge import judged
from pipeline.fitting.trade_off import FrontierPoint, frontier
from pipeline.fitting.wanted import EnginePlanResult
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.make import make_plan, of_weights
from pipeline.planning.plan import Choice
from pipeline.profiles.profile import MeasuredPlan, Profile, ProfileError
from pipeline.profiles.profile_file import save_profile
from pipeline.program.program import Program, letting_go
from pipeline.schedule.architectures import ARCHITECTURES
from server.codec.messages import Signature, signature_of
from server.errors import NotServingError
from server.memory.process_memory import free_bytes
from server.repository.apart import SearchApart
from server.repository.environment import DevicePack, RepositoryEnvironment
from server.repository.on_disk import Slot, is_still, labelled
from server.scheduling.sweeps import ALONE, Batching
from server.settings.per_model import MOST_LANES, of_model
from server.settings.settings import Settings

_log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from pipeline.measuring.plan_races import Entrant

#: What Python says, in no class of its own.
_NO_THREAD = "can't start new thread"


def batching_of(settings: Settings, slot: Slot) -> Batching:
    """Return how requests to the model in ``slot`` share sweeps, as far as its plan has lanes."""
    own = _configured(slot) if of_model(settings.workers, slot.model, 1) == 1 else ALONE
    lanes = of_model(settings.lanes, slot.model, None)
    if lanes is None:
        return own
    preferred = of_model(settings.preferred_lanes, slot.model, lanes)
    return Batching(lanes, (preferred,), of_model(settings.lane_delay, slot.model, 0.0))


def pin_of(settings: Settings, slot: Slot) -> int | None:
    """Return the bytes of which the model in ``slot`` has no fewer; 0: all; None: it is not pinned."""
    return settings.pin.get(slot.model, slot.config.pin)


def _configured(slot: Slot) -> Batching:
    """Return the batching of the configuration: a sweep carries up to ``max_batch_size`` requests."""
    batching, most = slot.config.batching, slot.config.max_batch_size
    if batching is None or not most:
        return ALONE
    lanes = min(most, MOST_LANES)
    preferred = tuple(size for size in batching.preferred_sizes if size <= lanes)
    return Batching(lanes, preferred or (lanes,), batching.most_queue_seconds)


@dataclass(frozen=True)
class Prepared:
    """The model in a slot: its pack as the device runs it, and its share of the budget."""

    slot: Slot
    opened: DevicePack
    sharer: Sharer

    @property
    def program(self) -> Program:
        return self.opened.program

    @property
    def pack(self) -> Pack:
        return self.program.pack

    @property
    def profile(self) -> Profile | None:
        return self.opened.profile

    @property
    def known(self) -> FoundPlans:
        """Plans that were found for it."""
        return self.opened.known

    @cached_property
    def signature(self) -> Signature:
        """What the model takes and gives."""
        return signature_of(self.pack)

    @cached_property
    def infer_bytes(self) -> int:
        """The memory of an infer request whose JSON is short."""
        return short_infer_bytes(self.pack.manifest)

    def is_there(self) -> bool:
        """Return whether its file of weights is still the same; blocks."""
        return is_still(self.slot.seen, self.pack.weights_path)


def figures(*asked: Any) -> list[dict[str, Any]]:
    """Return the points of ``frontier`` with the arguments ``asked``, ascending in memory, for JSON."""
    return [_shown(point) for point in frontier(*asked)]


def _shown(point: FrontierPoint) -> dict[str, Any]:
    return {
        "plan_bytes": point.plan.total_bytes,
        "weight_bytes": point.plan.weight_bytes,
        "arena_bytes": point.plan.arena_bytes,
        "seconds": point.seconds,
        "estimated": point.estimated,
    }


class Preparer:
    """Prepares packs as the settings say; requests to them shall fit in ``budget``."""

    def __init__(
        self, settings: Settings, budget: Budget, environment: RepositoryEnvironment
    ) -> None:
        self._settings = settings
        self._budget = budget
        self._environment = environment
        self._search = SearchApart(self._spare_bytes, lambda: not self._budget.held())
        #: Found plans that cannot be saved beside their packs, by the folders of these.
        self._unsaved: dict[Path, FoundPlans] = {}
        #: Models that ``least`` has opened, by slots, as many as the budget may hold at once. Loading them
        #: soon after uses them, since opening and planning takes most of the time of a load.
        self._surveyed: dict[str, Prepared] = {}

    def _spare_bytes(self) -> int:
        """Return the memory that stays free even when the service holds all that it may."""
        if self._settings.memory is not None:
            return 0  # that setting limits the process, and the budget takes all that is left
        # The memory of requests is reserved in the budget, but is mostly not used yet.
        return free_bytes() - self._budget.free_bytes - self._budget.request_bytes

    def least(self, slot: Slot) -> Minimum:
        """Return how much the model in ``slot`` needs at least on this device; blocks.

        Raises:
            ModelError, LoaderError, DeviceError, PlanError: its pack is damaged, or for other machines.
            OSError: no access.
        """
        # At level DEBUG, since loading the model later warns of a profile that does not hold.
        opened = self._open(slot, logging.DEBUG)
        if not opened.known.save():
            self._unsaved[opened.pack.folder] = opened.known
        least = opened.sharer
        others = (each.sharer for each in self._surveyed.values())
        if sum(sum(each.least.values()) for each in (least, *others)) <= self._budget.total_bytes:
            self._surveyed[slot.name] = opened
        return Minimum(least.least, self._environment.need(opened.pack), least.alone)

    def prepare(self, slot: Slot) -> Prepared:
        """Return the model in ``slot``, ready to be planned; blocks.

        Raises:
            ModelError, LoaderError, DeviceError, PlanError: its pack is damaged, or for other machines.
            NotServingError: the system refuses its files. RefusedError: no request could be answered.
        """
        with naming(slot.name):
            model = self._as_surveyed(slot) or self._open(slot)
            opened, pack = model.opened, labelled(model.pack, slot)
            check_requests(slot.name, self._environment.need(pack), self._budget)
            if pack is not model.pack:
                opened = opened._replace(program=replace(opened.program, pack=pack))
            lanes, shared = batching_of(self._settings, slot).lanes, model.sharer
            if lanes > 1:
                shared = self._sharer(slot, opened, lanes)
            return Prepared(slot, opened, shared)

    def frontier(self, model: Prepared) -> list[dict[str, Any]]:
        """Return the plans that ``model`` may have, as ``figures`` of a frontier; blocks.

        Raises:
            PlanError: it has none.
        """
        resident = self._environment.device.adapt(ARCHITECTURES["pre"])
        architecture = self._environment.architecture
        asked = model.program, architecture, resident, model.profile, model.known
        return self._search.fully(figures, *asked)

    def race(self, model: Prepared, n_bytes: int, serving: Choice) -> "list[Entrant]":
        """Return plans of ``model`` within ``n_bytes``, as ``budget_entrants`` says; blocks.

        Raises:
            PlanError: there are none.
        """
        from pipeline.measuring.plan_races import budget_entrants

        assert model.profile is not None
        architecture = self._environment.architecture
        of = model.program, architecture, model.profile, n_bytes, serving, model.known
        with letting_go(model.program):
            return self._search.fully(budget_entrants, *of)

    def planned(self, model: Prepared, choice: Choice) -> EnginePlanResult:
        """Return the plan of ``choice``; what was made of the program stays for the next one; blocks."""
        architecture = of_weights(self._environment.architecture, model.program)
        plan = make_plan(model.program, architecture, choice=choice)
        return judged(model.program, plan, model.profile)

    def measured(self, model: Prepared, plans: tuple[MeasuredPlan, ...]) -> Prepared:
        """Return ``model`` with what was measured of ``plans``, and keep that in its profile; blocks.

        Where the profile cannot be written, it holds as long as this process.

        Raises:
            ReadError: the weights cannot be read.
        """
        # Another process may have measured it meanwhile.
        profile = self._environment.profile(model.pack, logging.DEBUG) or model.profile
        assert profile is not None
        profile = profile.with_plans(plans)
        try:
            save_profile(profile, model.pack)
        except ProfileError as exc:
            _log.debug("%s: what was measured is not kept", exc)
        # Of plans with several lanes none is measured.
        opened = model.opened._replace(profile=profile)
        return Prepared(model.slot, opened, self._sharer(model.slot, opened))

    def _open(self, slot: Slot, level: int = logging.WARNING) -> Prepared:
        """Open the pack in ``slot``, for one lane; ``level``: of log lines about its profile.

        Raises:
            As ``prepare``.
        """
        opened = self._environment.open_pack(slot.folder, level)
        folder = opened.program.pack.folder
        if folder in self._unsaved:
            opened.known.take(self._unsaved[folder])
        return Prepared(slot, opened, self._sharer(slot, opened))

    def _as_surveyed(self, slot: Slot) -> Prepared | None:
        """Return the model that ``least`` has opened, once, if its files are still the same."""
        opened = self._surveyed.pop(slot.name, None)
        if opened is None or opened.slot.seen != slot.seen or not slot.is_as_seen():
            return None
        profile = self._environment.profile(opened.pack)  # which also warns if it does not hold
        return opened if profile == opened.profile else None

    def _sharer(self, slot: Slot, opened: DevicePack, lanes: int = 1) -> Sharer:
        """Return the model in ``slot`` as a sharer, in partitions where the settings say so.

        Raises:
            PlanError: it cannot be cut into as many, or the device cannot run partitions.
        """
        workers = of_model(self._settings.workers, slot.model, 1)
        request = self._environment.budget_request(slot.name, opened, lanes, workers, self._search)
        return request.pinned(pin_of(self._settings, slot))


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Turn errors of memory, files and threads, from system or device, into errors that name the model."""
    try:
        yield
    except DeviceMemoryError as exc:
        raise RefusedError(f"model {name!r}: {exc}") from exc
    except MemoryError as exc:
        raise NotServingError(f"model {name!r}: cannot allocate its memory") from exc
    except OSError as exc:
        raise NotServingError(f"model {name!r}: {exc.strerror or exc}") from exc
    except RuntimeError as exc:
        if str(exc) != _NO_THREAD:
            raise
        raise NotServingError(f"model {name!r}: the system allows no more threads") from exc
