"""The application of a file with its packs, as this machine runs them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cli.arguments.predicted import profiled
from models.geometry.cnn import Cnn
from models.geometry.of_pack import PackCnn
from models.packs.pack import open_pack
from papers.applications.application import Application
from papers.applications.application_files import read_application, runs_at_once
from papers.applications.cost import Evaluator
from papers.applications.from_pack import (
    AllTimes,
    Cut,
    PackTimes,
    cnn_with_parameters,
    cuts_of,
    layers_at,
)
from papers.applications.ours.members import ApplicationMember
from pipeline.devices.base import Device
from pipeline.fitting.partitioned import balanced_cuts
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.program.prepare import prepare
from pipeline.program.program import Program
from pipeline.schedule.architectures import ARCHITECTURES


@dataclass(frozen=True)
class OpenedPack:
    """A model that is a pack, its profile, and why it has none."""

    program: Program
    profile: Profile | None
    model: PackCnn
    hint: str


@dataclass(frozen=True)
class OpenedApplication:
    """``packs`` by model; None: its layers are written down. ``cuts``: of partitions that run at once."""

    application: Application
    packs: tuple[OpenedPack | None, ...]
    cuts: tuple[tuple[Cut, ...], ...]

    @property
    def hints(self) -> list[str]:
        """What there is to say of profiles that are missing, and of cuts elsewhere than was asked for."""
        said = [item.hint for item in self.packs if item and item.hint]
        for cnn, cuts in zip(self.application.cnns, self.cuts, strict=True):
            said += [
                f"{cnn.name}: cut before {cut.layer}, the nearest place to {cut.asked} where the pack "
                "can be cut"
                for cut in cuts
                if cut.moved
            ]
        return said

    def evaluator(self) -> Evaluator:
        """Return what evaluates chromosomes, with the times of profiles."""
        times = [
            PackTimes(item.program, item.model, item.profile) if item and item.profile else None
            for item in self.packs
        ]
        return Evaluator(self.application, AllTimes(self.application, times))

    def members(self, device: Device) -> list[ApplicationMember] | None:
        """Return its models as our planner knows them; None: some are no packs."""
        auto = device.adapt(ARCHITECTURES["auto"])
        found = [
            ApplicationMember(item.program, item.profile, auto, tuple(cut.piece for cut in cuts))
            for item, cuts in zip(self.packs, self.cuts, strict=True)
            if item is not None
        ]
        return found if len(found) == len(self.packs) else None


class _Packs:
    """Opens the packs of an application, by model."""

    def __init__(self, device: Device, at_once: bool) -> None:
        self._device = device
        self._at_once = at_once
        self.opened: dict[str, OpenedPack] = {}

    def cnn(self, pack: Path, name: str) -> Cnn:
        found = open_pack(pack, self._device.target)
        profile: Profile | None = None
        hint = ""
        try:
            program, profile = profiled(found, self._device)
        except ProfileError as exc:
            program, hint = prepare(found, self._device), str(exc)
            if self._at_once:
                hint += " with --threads 1: partitions at once compute on a core each"
        model = cnn_with_parameters(found, name)
        self.opened[name] = OpenedPack(program, profile, model, hint)
        return model.cnn

    def starts(self, name: str, workers: int) -> Sequence[int]:
        item = self.opened[name]
        return layers_at(item.model, balanced_cuts(item.program, workers, item.profile))


def open_application(
    path: Path, open_device: Callable[[int | None], Device], threads: int | None = None
) -> tuple[OpenedApplication, Device]:
    """Read the application of ``path`` and open its packs, on the device of so many threads.

    With one where partitions run at once: each has a core.

    Raises:
        ModelError: the file or a pack is not right. PlanError: a pack cannot be cut for its workers.
    """
    at_once = runs_at_once(path)
    device = open_device(1 if at_once else threads)
    packs = _Packs(device, at_once)
    application = read_application(path, packs).application
    found = tuple(packs.opened.get(cnn.name) for cnn in application.cnns)
    cuts = tuple(
        cuts_of(application, number, item.program, item.model) if item else ()
        for number, item in enumerate(found)
    )
    return OpenedApplication(application, found, cuts), device
