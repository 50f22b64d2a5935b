"""The profile that planning may use: the pack's own, when it is of this machine."""

import logging

from models.packs.pack import Pack
from pipeline.devices.base import Device
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import FILE, load_profile
from pipeline.program.prepare import prepare
from pipeline.program.program import Program

_log = logging.getLogger(__name__)


def prepared(
    pack: Pack, device: Device, level: int = logging.WARNING
) -> tuple[Program, Profile | None]:
    """Return ``pack`` as ``device`` runs it, and its profile, as which the device works from now on.

    ``level``: of what is said of a profile that does not hold here.

    Raises:
        ReadError: the weights cannot be read.
    """
    profile = find_profile(pack, device, level)
    if profile is not None:
        device.tune(profile.tuning)
    return prepare(pack, device), profile


def find_profile(pack: Pack, device: Device, level: int = logging.WARNING) -> Profile | None:
    """Return the profile of ``pack`` computed by ``device`` on this machine, if it has one.

    One that does not hold here is a warning: the pack is then planned by rule of thumb.

    Raises:
        ReadError: the weights cannot be read.
    """
    if not (pack.folder / FILE).exists():
        return None
    try:
        return load_profile(pack, this_machine(pack.weights_path, device), level)
    except ProfileError as exc:
        _log.log(level, "planned without a profile: %s", exc)
        return None
