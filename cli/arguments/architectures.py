"""``--architectures pre,2s@12MiB,auto@2%``: what ``bench pipeline`` measures, and its profile."""

from collections.abc import Callable, Sequence

from cli.arguments.options import architecture
from cli.arguments.weights import weight_bytes
from loader.readers.disk import REAL_DISK, Disk
from models.packs.manifest import Manifest
from models.packs.pack import Pack
from pipeline.benchmark.configuration import BenchConfiguration
from pipeline.devices.base import Device
from pipeline.measuring.profiling import Progress, profile_pack
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import load_profile, save_profile
from pipeline.schedule.architectures import ARCHITECTURES

_SHORT_ITERATIONS = 3


def configurations(
    texts: str, weights: str | None, manifest: Manifest, total_bytes: int | None = None
) -> list[BenchConfiguration]:
    """Return the configurations that ``texts`` names, each once; ``weights`` limits a plain ``auto``.

    With ``total_bytes`` that does instead, of all memory, and ``auto`` is always among them.

    Raises:
        typer.BadParameter: a name or a size is none.
    """
    found = {}
    for text in (part.strip() for part in texts.split(",")):
        name, _, limit = text.partition("@")
        chosen = architecture(name, "--architectures")
        default = weights if chosen.tuned == "auto" else None
        option = "--architectures" if limit else "--weights"
        found[text] = BenchConfiguration(
            text, chosen, weight_bytes(limit or default, manifest, option)
        )
    if total_bytes is not None:
        found["auto"] = BenchConfiguration("auto", ARCHITECTURES["auto"], total_bytes=total_bytes)
    return list(found.values())


def profile_for(
    pack: Pack,
    chosen: Sequence[BenchConfiguration],
    device: Device,
    say: Callable[[str], None],
    progress: Progress = lambda done, total: None,
    disk: Disk = REAL_DISK,
) -> Profile | None:
    """Return the profile of ``pack``; measure a short one, and say so, where a configuration needs it."""
    try:
        return load_profile(pack, this_machine(pack.weights_path, device, disk))
    except ProfileError as exc:
        tuned = [each.label for each in chosen if each.tuned]
        if not tuned:
            return None
        say(f"{exc}; measuring a short one, which {', '.join(tuned)} needs, and keeping it there")
    measured = profile_pack(pack, device, _SHORT_ITERATIONS, progress, disk=disk)
    try:
        save_profile(measured, pack)
    except ProfileError as exc:
        say(f"{exc}; it will be measured again")
    return measured
