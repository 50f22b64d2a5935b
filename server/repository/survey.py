"""What is in a repository, and which of it a server with a budget would serve, before there is one.

The decisions are the server's own (server/memory/), in the order in which it loads: by name, each model
within its share of what the others leave.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loader.errors import LoaderError
from models.errors import ModelError
from models.packs.pack import Pack, open_pack, versions
from pipeline.devices.base import Device, DeviceError
from pipeline.fitting.within import least_plan
from pipeline.planning.plan import PlanError
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import FILE, load_profile
from pipeline.schedule.architectures import ARCHITECTURES
from server.errors import NotFoundError, RefusedError, shown
from server.memory.budget import Budget, check_requests, fit
from server.memory.request_needs import Need, smallest_budget
from server.memory.sharing import even_share
from server.repository.model_folders import model_names

_ARCHITECTURE = ARCHITECTURES["auto"]


@dataclass(frozen=True)
class Found:
    """A model of a repository, of which the latest version counts. ``fault``: why it cannot be opened.

    ``least_bytes``: what it takes at least, requests to it aside. ``profile_fault``: why its profile, if
    there is one, does not hold here.
    """

    name: str
    versions: tuple[str, ...]
    fault: str = ""
    pack: Pack | None = None
    least_bytes: int = 0
    profile: Profile | None = None
    profile_fault: str = ""

    @property
    def need(self) -> Need | None:
        return None if self.pack is None else Need.of(self.pack.manifest)

    @property
    def smallest_budget_bytes(self) -> int | None:
        """The smallest budget in which it is served alone; None where it cannot be opened."""
        return None if self.need is None else smallest_budget(self.least_bytes, [self.need])


@dataclass(frozen=True)
class Verdict:
    """What becomes of a model in a budget: the bytes that it takes, or why none.

    ``missing_bytes``: by how much the budget is too small for it beside those that are served.
    """

    memory_bytes: int | None = None
    reason: str = ""
    missing_bytes: int | None = None

    @property
    def is_served(self) -> bool:
        return self.memory_bytes is not None


def survey(root: Path, device: Device, chosen: Sequence[str] = ()) -> list[Found]:
    """Return the models in ``root`` as ``device`` would run them; one that fails has a fault.

    ``chosen``: only these, in this order; none: all, by name.

    Raises:
        NotFoundError: there is no such folder, or no such model in it.
    """
    known = model_names(root)
    for name in chosen:
        if name not in known:
            raise NotFoundError(f"model {shown(name)}: not in the repository")
    return [_found(root / name, device) for name in chosen or known]


def needed_for_all(models: Sequence[Found]) -> int:
    """Return the smallest budget in which all ``models`` that can be opened are served together."""
    needs = [model.need for model in models if model.need is not None]
    return smallest_budget(sum(model.least_bytes for model in models), needs)


def share_out(
    models: Sequence[Found], budget: Budget, device: Device, request_bytes: int | None = None
) -> list[Verdict]:
    """Return what becomes of each of ``models``; what they take is reserved in ``budget``.

    ``request_bytes``: for requests in flight; None: as the server chooses. With profiles it may take
    seconds.

    Raises:
        RefusedError: not even the memory of requests is in the budget.
    """
    needs = [model.need for model in models if model.need is not None]
    budget.set_aside(request_bytes, needs)
    verdicts = [_verdict(model, models, budget, device) for model in models]
    served = sum(
        model.least_bytes
        for model, verdict in zip(models, verdicts, strict=True)
        if verdict.is_served
    )

    def missing(model: Found) -> int | None:
        if model.need and model.need.tight_bytes > budget.request_bytes:
            return None  # no budget changes what the setting gives to requests
        wanted = budget.total_for(served + model.least_bytes)
        return wanted - budget.total_bytes if wanted > budget.total_bytes else None

    return [
        verdict
        if verdict.is_served or model.fault
        else replace(verdict, missing_bytes=missing(model))
        for model, verdict in zip(models, verdicts, strict=True)
    ]


def _found(folder: Path, device: Device) -> Found:
    numbers = tuple(path.name for path in versions(folder))
    try:
        pack = open_pack(folder, device.target)
        profile, profile_fault = _profile(pack, device)
        if profile is not None:
            device.tune(profile.tuning)
        pack = device.fitted(pack)
        least = least_plan(pack.manifest, device.adapt(_ARCHITECTURE), profile).total_bytes
    except (ModelError, LoaderError, DeviceError, PlanError) as exc:
        return Found(folder.name, numbers, str(exc))
    except OSError as exc:
        return Found(folder.name, numbers, f"{exc.filename or folder}: {exc.strerror or exc}")
    return Found(folder.name, numbers, "", pack, least, profile, profile_fault)


def _profile(pack: Pack, device: Device) -> tuple[Profile | None, str]:
    """Return the profile of ``pack``, or None and why the one that is there does not hold."""
    try:
        return load_profile(pack, this_machine(pack.weights_path, device)), ""
    except ProfileError as exc:
        return None, str(exc) if (pack.folder / FILE).exists() else ""


def _least(model: Found, budget: Budget) -> int:
    """Return what ``model`` takes at least; nothing where no request to it could be answered."""
    need = model.need
    return model.least_bytes if need and need.tight_bytes <= budget.request_bytes else 0


def _verdict(model: Found, models: Sequence[Found], budget: Budget, device: Device) -> Verdict:
    if model.pack is None:
        return Verdict(reason=model.fault)
    manifest, held = model.pack.manifest, budget.held()
    others = [other for other in models if other is not model]
    waiting = [_least(other, budget) for other in others if other.name not in held]
    share = even_share(budget.free_bytes, [model.least_bytes, *waiting])
    architecture = device.adapt(_ARCHITECTURE)
    try:
        check_requests(model.name, manifest, budget)
        fitted = fit(
            manifest,
            architecture,
            model.name,
            budget,
            share,
            beside_bytes=sum(_least(other, budget) for other in others),
            profile=model.profile,
        )
    except (RefusedError, PlanError, ModelError) as exc:
        return Verdict(reason=str(exc))
    budget.reserve(model.name, fitted.plan.memory)
    return Verdict(fitted.plan.total_bytes)
