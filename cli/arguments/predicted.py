"""What ``simulate`` and ``plan`` share: the profile of a pack here, and how plans are printed."""

from models.packs.pack import Pack
from pipeline.devices.base import Device
from pipeline.planning.plan import Plan
from pipeline.profiles.machine import this_machine
from pipeline.profiles.profile import Profile
from pipeline.profiles.profile_file import load_profile
from pipeline.program.prepare import prepare
from pipeline.program.program import Program

#: The parts of a plan's memory; they add up to ``total_bytes``.
PARTS = (
    "weight_bytes",
    "arena_bytes",
    "scratch_bytes",
    "session_bytes",
    "object_bytes",
    "io_bytes",
)
#: More than any machine has: without a budget, only other limits count.
UNLIMITED_BYTES = 1 << 62


def profiled(pack: Pack, device: Device) -> tuple[Program, Profile]:
    """Return ``pack`` as ``device`` runs it, and its profile, as which the device works from now on.

    Raises:
        ProfileError: there is none for it here.
    """
    profile = load_profile(pack, this_machine(pack.weights_path, device))
    device.tune(profile.tuning)
    return prepare(pack, device), profile


def memory_of(plan: Plan) -> dict[str, int]:
    """Return the parts of a plan's memory and their sum."""
    return {"total_bytes": plan.total_bytes, **{part: getattr(plan, part) for part in PARTS}}
