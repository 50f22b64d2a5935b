"""The application of a file with its packs, as this machine runs them."""

from dataclasses import dataclass
from pathlib import Path

from models.geometry.cnn import Cnn
from models.geometry.of_pack import PackCnn
from models.packs.pack import Pack, open_pack
from pipeline.applications.application import Application
from pipeline.applications.evaluate import Evaluator
from pipeline.applications.file import read_application
from pipeline.applications.from_pack import AllTimes, PackTimes, cnn_with_parameters
from pipeline.applications.ours import Member
from pipeline.devices.base import Device
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.schedule.architectures import ARCHITECTURES
from server.cli.arguments.predicted import profiled


@dataclass(frozen=True)
class OpenedApplication:
    """``packs``, their ``profiles`` and ``hints`` why one has none, by model; None: written down."""

    application: Application
    packs: tuple[Pack | None, ...]
    profiles: tuple[Profile | None, ...]
    cnns: tuple[PackCnn | None, ...]
    hints: tuple[str, ...]

    def evaluator(self) -> Evaluator:
        """Return what evaluates chromosomes, with the times of profiles."""
        times = [
            PackTimes(pack.manifest, cnn, profile) if pack and cnn and profile else None
            for pack, cnn, profile in zip(self.packs, self.cnns, self.profiles, strict=True)
        ]
        return Evaluator(self.application, AllTimes(self.application, times))

    def members(self, device: Device) -> list[Member] | None:
        """Return its models as our planner knows them; None: some are no packs."""
        auto = device.adapt(ARCHITECTURES["auto"])
        found = [
            Member(pack.manifest, profile, auto)
            for pack, profile in zip(self.packs, self.profiles, strict=True)
            if pack is not None
        ]
        return found if len(found) == len(self.packs) else None


def open_application(path: Path, device: Device) -> OpenedApplication:
    """Read the application of ``path`` and open its packs.

    Raises:
        ModelError: the file or a pack is not right.
    """
    opened: dict[str, tuple[Pack, Profile | None, PackCnn, str]] = {}

    def cnn_of(pack_path: Path, name: str) -> Cnn:
        pack = open_pack(pack_path, device.target)
        try:
            fitted, profile, hint = *profiled(pack, device), ""
        except ProfileError as exc:
            fitted, profile, hint = device.fitted(pack), None, str(exc)
        model = cnn_with_parameters(fitted.manifest, name)
        opened[name] = fitted, profile, model, hint
        return model.cnn

    application = read_application(path, cnn_of).application
    found = [opened.get(cnn.name) for cnn in application.cnns]
    return OpenedApplication(
        application,
        tuple(item[0] if item else None for item in found),
        tuple(item[1] if item else None for item in found),
        tuple(item[2] if item else None for item in found),
        tuple(item[3] for item in found if item and item[3]),
    )
