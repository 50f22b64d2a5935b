"""profile.json: the profile of a pack, beside its manifest. Written all at once, checked when read.

A profile of a disk that is none (``Machine.pace``) has a file of its own.
"""

import logging
from dataclasses import fields, replace
from pathlib import Path

from models.packs.manifest import checksum
from models.packs.pack import Pack
from models.records import FieldError, parse, read_json
from models.whole_files import write_atomically
from pipeline.devices.base import Device
from pipeline.profiles.machine import Machine, this_machine
from pipeline.profiles.profile import Profile, ProfileError, ShapedProfile, is_disturbed
from pipeline.program.prepare import prepare
from pipeline.program.program import Program

FILE = "profile.json"
_MAX_FILE_BYTES = 64 << 20

_log = logging.getLogger(__name__)


def manifest_checksum(pack: Pack) -> str:
    """Return the checksum of the manifest of ``pack``."""
    return checksum(pack.path.read_bytes())


def profile_name(shape_index: int) -> str:
    """Return what the profile of a shape is called in the folder of its pack."""
    return f"profile-{shape_index}.json" if shape_index else FILE


def file_of(machine: Machine, name: str) -> str:
    """Return under which name of its own ``machine`` keeps what is called ``name`` on a real disk."""
    if machine.pace is None:
        return name
    stem, _, ending = name.rpartition(".")
    return f"{stem}-paced-{machine.pace / 1e6:.12g}MB.{ending}"


def save_profile(profile: Profile, pack: Pack) -> Path:
    """Write ``profile`` into the folder of ``pack``, all at once; return the file.

    Raises:
        ProfileError: it cannot be written.
    """
    path = pack.folder / file_of(profile.machine, profile_name(pack.shape_index))
    try:
        write_atomically(path, profile.document() + "\n")
    except OSError as exc:
        raise ProfileError(f"{path}: {exc.strerror or exc}") from exc
    return path


def disturbance(folder: Path) -> str:
    """Return in words how the profile in ``folder``, a pack's, was disturbed; empty: not, or unknown."""
    try:
        document = parse((folder / FILE).read_bytes())
    except (OSError, FieldError):
        return ""
    # Whatever else is in it.
    others = document.get("others", 0.0) if isinstance(document, dict) else 0.0
    if not isinstance(others, int | float):
        return ""
    return disturbed_by(others) if is_disturbed(others) else ""


def disturbed_by(others: float) -> str:
    """Return in words that other work took the part ``others`` of the processors."""
    return f"measured while other work took {others:.0%} of the processors: its times are too long"


def load_profile(pack: Pack, machine: Machine, level: int = logging.WARNING) -> Profile:
    """Return the profile of ``pack``, measured on ``machine``, or on one that hardly differs.

    What then differs is logged at ``level``, and the profile is not ``exact``.

    Raises:
        ProfileError: there is none, it is damaged, or it is of another pack or machine.
    """
    path = pack.folder / file_of(machine, profile_name(pack.shape_index))
    remedy = f"run `layerstream profile {pack.path if pack.shape_index else pack.folder}`"
    if not path.is_file():
        raise ProfileError(f"{pack.folder}: no profile: {remedy}")
    content = _content(path, remedy)
    profile = _parsed(path, content, remedy)
    if profile.manifest != manifest_checksum(pack):
        raise ProfileError(f"{path}: profile of another pack: its manifest differs; {remedy}")
    if fault := _lacking(profile, pack):
        raise ProfileError(f"{path}: {fault}; {remedy}")
    measured_on = f"{path}: profile of {pack.name}: measured on "
    if decisive := profile.machine.decisive_differences(machine, bool(pack.manifest.quantised)):
        raise ProfileError(f"{measured_on}{'; '.join(decisive)}; {remedy}")
    if slight := profile.machine.slight_differences(machine):
        _log.log(
            level,
            "%s%s: planned with it; times are less exact, and no bound holds",
            measured_on,
            "; ".join(slight),
        )
        profile = replace(profile, exact=False)
    if profile.was_disturbed:
        _log.log(
            level, "%s: %s; measure again on a quiet machine", path, disturbed_by(profile.others)
        )
    return profile


def _lacking(profile: Profile, pack: Pack) -> str:
    """Return what ``profile`` has no time of, though ``pack`` has it; empty: of nothing."""
    timed, pieces = len(profile.pieces), len(pack.manifest.pieces)
    if timed != pieces:
        return f"pieces: times of {timed}, the pack has {pieces}"
    return (
        "reads: no times, the pack has weights" if pack.manifest.spans and not profile.reads else ""
    )


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

    One that does not hold here is a warning: the pack is then planned by estimates.

    Raises:
        ReadError: the weights cannot be read.
    """
    if not (pack.folder / profile_name(pack.shape_index)).exists():
        return None
    try:
        profile = load_profile(pack, this_machine(pack.weights_path, device), level)
        shapes = tuple(find_profile(other, device, level) for other in pack.others)
        if not shapes:
            return profile
        values = {field.name: getattr(profile, field.name) for field in fields(profile)}
        return ShapedProfile(**values, shapes=shapes)
    except ProfileError as exc:
        _log.log(level, "planned without a profile: %s", exc)
        return None


def _content(path: Path, remedy: str) -> bytes:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise ProfileError(f"{path}: larger than {_MAX_FILE_BYTES} bytes; {remedy}")
        return path.read_bytes()
    except OSError as exc:
        raise ProfileError(f"{path}: {exc.strerror or exc}") from exc


def _parsed(path: Path, content: bytes, remedy: str) -> Profile:
    try:
        return read_json(Profile, content)
    except FieldError as exc:
        raise ProfileError(f"{path}: {exc}; {remedy}") from exc
