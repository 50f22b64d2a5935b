"""Which models are in a repository, and which of them a server with a budget would serve, without one.

The decision is that of the server (server/memory/sharing.py), in the order in which it loads models.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from models.packs.folders import versions
from models.packs.pack import Pack, open_pack
from pipeline.budget.budget import Budget, check_requests
from pipeline.budget.errors import RefusedError
from pipeline.budget.holdings import Minimum, least_together, needed_by
from pipeline.budget.request_needs import Need, Smallest, smallest_budgets
from pipeline.budget.sharing import Activations, Sharer, missing_bytes, share_one_by_one, sharer
from pipeline.devices.base import Device
from pipeline.fitting.wanted import PlanResult
from pipeline.planning.found_plans import FoundPlans
from pipeline.profiles.found_plans_file import plans_of
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import FILE, load_profile
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.program.stopping import tell
from pipeline.schedule.architectures import ARCHITECTURES
from server.errors import NotFoundError, shown
from server.faults import FAILURES
from server.repository.model_config import read_model_config
from server.repository.on_disk import model_names

_ARCHITECTURE = ARCHITECTURES["auto"]


@dataclass(frozen=True)
class FoundModel:
    """A model of a repository, in its latest version. ``fault``: why it cannot be opened.

    ``least``: bytes by kind of the least that it takes, without requests. ``pin``: the bytes of which it
    has no fewer, 0: all; None: it is not pinned. ``profile_fault``: why its profile, if there is one, does
    not hold on this machine.
    """

    name: str
    versions: tuple[str, ...]
    fault: str = ""
    program: Program | None = None
    least: Mapping[str, int] = field(default_factory=dict)
    profile: Profile | None = None
    profile_fault: str = ""
    known: FoundPlans = field(default_factory=FoundPlans)
    pin: int | None = None

    def budget_request(self, device: Device) -> Sharer:
        """Return it as one of a set that shares a budget; raises as ``sharing.sharer``."""
        assert self.program is not None
        architecture = device.adapt(_ARCHITECTURE)
        request = sharer(self.name, self.program, architecture, self.profile, known=self.known)
        return request.pinned(self.pin)

    @property
    def need(self) -> Need | None:
        return None if self.program is None else Need.of(self.program.pack.manifest)

    @property
    def least_bytes(self) -> int:
        return sum(self.least.values())

    @property
    def smallest_budget_bytes(self) -> int | None:
        """The smallest budget in which all requests to it alone are answered; None: it cannot be opened."""
        return self._smallest and self._smallest.full_bytes

    @property
    def pictures_budget_bytes(self) -> int | None:
        """The smallest budget in which it alone answers photographs, if it takes any; else as above."""
        return self._smallest and self._smallest.bare_bytes

    @property
    def _smallest(self) -> Smallest | None:
        return self.need and smallest_budgets(self.least_bytes, [self.need])


@dataclass(frozen=True)
class Verdict:
    """Whether a model is served in a budget: the bytes that it takes, or why it is not.

    ``missing_bytes``: by how much the budget is too small for it beside those that are served.
    """

    memory_bytes: int | None = None
    reason: str = ""
    missing_bytes: int | None = None

    @property
    def is_served(self) -> bool:
        return self.memory_bytes is not None


def survey(
    root: Path,
    device: Device,
    chosen: Sequence[str] = (),
    pins: Mapping[str, int] = MappingProxyType({}),
) -> list[FoundModel]:
    """Return the models in ``root`` as ``device`` would run them; one that fails has a fault.

    ``chosen``: only these, in this order; none: all, by name. ``pins``: as the setting has them; of others
    their configuration says it.

    Raises:
        NotFoundError: there is no such folder, or no such model in it.
    """
    known = model_names(root)
    for name in chosen:
        if name not in known:
            raise NotFoundError(f"model {shown(name)}: not in the repository")
    names = list(chosen or known)
    models = []
    for number, name in enumerate(names):
        tell(f"model {name}", number + 1, len(names))
        models.append(_found(root / name, device, pins.get(name)))
    return models


def needed_for_all(models: Sequence[FoundModel], activations: Activations = "auto") -> int:
    """Return the smallest budget in which all ``models`` that can be opened answer all requests."""
    return needed_by(_minima(models), activations != "own")


def _minima(models: Sequence[FoundModel]) -> list[Minimum]:
    return [Minimum(model.least, model.need) for model in models if model.need is not None]


def judge(
    models: Sequence[FoundModel],
    budget: Budget,
    device: Device,
    request_bytes: int | None = None,
    activations: Activations = "auto",
) -> list[Verdict]:
    """Return a verdict for each of ``models``; their memory is reserved in ``budget``.

    ``request_bytes``: for requests in flight; None: as the server chooses. It may take seconds for models
    with profiles.

    Raises:
        RefusedError: the memory of requests alone exceeds the budget.
    """
    minima = _minima(models)
    needs = [minimum.need for minimum in minima]
    budget.set_aside(request_bytes, needs, least_together(minima, activations != "own"))
    verdicts = {model.name: _unservable(model, budget) for model in models}
    sharers = [model.budget_request(device) for model in models if verdicts[model.name] is None]
    shares = share_one_by_one(sharers, budget, activations)
    missing = missing_bytes(sharers, shares, budget)
    for each, outcome, lacking in zip(sharers, shares.outcomes, missing, strict=True):
        if isinstance(outcome, PlanResult):
            verdicts[each.name] = Verdict(outcome.plan.total_bytes)
        else:
            verdicts[each.name] = Verdict(reason=str(outcome), missing_bytes=lacking)
    return [verdicts[model.name] or Verdict() for model in models]


def _found(folder: Path, device: Device, pin: int | None) -> FoundModel:
    numbers: tuple[str, ...] = ()
    try:
        numbers = tuple(path.name for path in versions(folder))
        pack = open_pack(folder, device.target)
        profile, profile_fault = _profile(pack, device)
        if profile is not None:
            device.tune(profile.tuning)
        model = FoundModel(
            *(folder.name, numbers, "", prepare(pack, device)),
            profile=profile,
            profile_fault=profile_fault,
            known=plans_of(pack),
            pin=read_model_config(folder).pin if pin is None else pin,
        )
        return replace(model, least=model.budget_request(device).least)
    except OSError as exc:
        return FoundModel(folder.name, numbers, f"{exc.filename or folder}: {exc.strerror or exc}")
    except FAILURES as exc:
        return FoundModel(folder.name, numbers, str(exc))


def _profile(pack: Pack, device: Device) -> tuple[Profile | None, str]:
    """Return the profile of ``pack``, or None and why the one beside it does not hold on this machine."""
    try:
        return load_profile(pack, this_machine(pack.weights_path, device)), ""
    except ProfileError as exc:
        return None, str(exc) if (pack.folder / FILE).exists() else ""


def _unservable(model: FoundModel, budget: Budget) -> Verdict | None:
    """Return why ``model`` cannot be served with this much request memory; None: it may be."""
    if model.program is None:
        return Verdict(reason=model.fault)
    try:
        check_requests(model.name, Need.of(model.program.pack.manifest), budget)
    except RefusedError as exc:
        return Verdict(reason=str(exc))
    return None
