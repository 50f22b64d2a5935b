"""Looks at the machine itself: processor, clocks, other work, memory's pages, and what a Jetson has.

``root`` of each: where the folders /proc and /sys lie.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from cli.checks.finding import Finding, number, text
from models.packs.target import host_target
from models.runtime.sessions import threads_of_device
from pipeline.devices.elementwise.library import LibraryError, find_library
from pipeline.devices.elementwise.operator_node import why_not_shared
from pipeline.energy import NoMeter, find_meter
from pipeline.measuring.profiling import ProcessorTimes, others_share
from pipeline.profiles.machine import cpu_model
from pipeline.profiles.profile import is_disturbed
from server.memory.process_memory import meminfo_bytes
from server.settings.sizes import format_size

ROOT = Path("/")
_CPUS = "sys/devices/system/cpu"
_LOOK_SECONDS = 0.5
_SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies")
_SLOW_GOVERNORS = ("powersave", "conservative")
#: In these modes of a Jetson AGX Xavier all cores are online: MAXN and 30 W.
_MODES = (0, 3)
#: Below what a zone begins to throttle at, in thousandths of a degree.
_NEAR = 5000


def processor(root: Path) -> Iterator[Finding]:
    """Which processor, which instructions, and whether native kernels are there."""
    target = host_target()
    yield Finding("processor", "ok", f"{cpu_model(root / 'proc')}, {target.isa}")
    build = (
        "install a C compiler (gcc libc6-dev), then python -m pipeline.devices.elementwise.building"
    )
    library = find_library()
    if isinstance(library, LibraryError):
        yield Finding("native kernels", "warn", f"none, so requests take longer: {library}", build)
    elif why := why_not_shared(library.path):
        yield Finding("native kernels", "warn", f"for {library.processor}; {why}", build)
    else:
        yield Finding("native kernels", "ok", f"for {library.processor}")


def threads(root: Path, wanted: int | None) -> Finding:
    """Whether as many cores are there as threads compute."""
    asked, cores = threads_of_device(wanted), len(os.sched_getaffinity(0))
    quota = _quota(root)
    allowed = cores if quota is None else min(cores, quota)
    said = f"{asked} of ONNX Runtime on {allowed:g} cores"
    if asked > allowed:
        remedy = f"--threads {max(int(allowed), 1)}: threads that wait for a core make others wait"
        return Finding("threads", "warn", said, remedy)
    return Finding("threads", "ok", said)


def _quota(root: Path) -> float | None:
    """Return how many cores the control group may use, None: all."""
    group = root / "sys/fs/cgroup"
    limit, _, period = text(group / "cpu.max").partition(" ")
    if not limit:
        limit = text(group / "cpu/cpu.cfs_quota_us")
        period = text(group / "cpu/cpu.cfs_period_us")
    try:
        return int(limit) / int(period) if int(limit) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def cores_online(root: Path) -> Finding:
    """Whether all cores of the machine are on."""
    online, present = text(root / _CPUS / "online"), text(root / _CPUS / "present")
    if online != present:
        remedy = "echo 1 > /sys/devices/system/cpu/cpuN/online; on a Jetson nvpmodel -m 0 or -m 3"
        return Finding("cores", "warn", f"{online or 'none known'} of {present} are on", remedy)
    return Finding("cores", "ok", f"{online or 'unknown'}, all on")


def other_work(seconds: float = _LOOK_SECONDS) -> Finding:
    """How much of the cores others take now."""
    before = ProcessorTimes.now()
    time.sleep(seconds)
    share = others_share(before, ProcessorTimes.now(), os.cpu_count() or 1)
    if before is None:
        return Finding("other work", "warn", "the system does not say", "mount /proc")
    said = f"others take {share:.0%} of the cores now"
    if is_disturbed(share):
        remedy = (
            "see top; answers take longer beside them, and a profile measured now is none of a quiet "
            "machine"
        )
        return Finding("other work", "warn", said, remedy)
    return Finding("other work", "ok", said)


def clocks(root: Path) -> Iterator[Finding]:
    """What tells the time, and whether the cores' clocks may rise."""
    source = text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source in _SLOW_CLOCKS:
        remedy = "boot with clocksource=tsc (or kvm-clock in a guest), if the machine has it"
        yield Finding("clock", "warn", f"{source}: to look at it takes a microsecond", remedy)
    else:
        yield Finding("clock", "ok", source or "the kernel does not say which")
    policies = sorted((root / _CPUS / "cpufreq").glob("policy*"))
    governors = {text(policy / "scaling_governor") for policy in policies} - {""}
    fastest = [_khz(policy, "scaling_max_freq") for policy in policies]
    said = ", ".join(sorted(governors)) or "not to be chosen here"
    if any(fastest):
        said += f"; up to {max(fastest) / 1e6:.2f} GHz"
    slow = governors & {*_SLOW_GOVERNORS}
    capped = [p.name for p in policies if _khz(p, "scaling_max_freq") < _khz(p, "cpuinfo_max_freq")]
    if slow:
        yield Finding(
            "core clocks", "warn", said, "cpupower frequency-set -g performance (or schedutil)"
        )
    elif capped:
        remedy = "raise scaling_max_freq; on a Jetson nvpmodel -m 0, then jetson_clocks"
        yield Finding("core clocks", "warn", f"{said}, below what {', '.join(capped)} has", remedy)
    else:
        yield Finding("core clocks", "ok", said)


def _khz(policy: Path, name: str) -> int:
    return number(policy / name) or 0


def pages(root: Path) -> Iterator[Finding]:
    """Huge pages, and whether memory may be written to swap."""
    policy = text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    if not policy or "[never]" in policy:
        remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        said = "never" if policy else "the kernel has none"
        yield Finding("huge pages", "warn", said, remedy if policy else "")
    else:
        yield Finding("huge pages", "ok", policy.partition("[")[2].partition("]")[0])
    swap = meminfo_bytes("SwapTotal", root / "proc/meminfo")
    if swap:
        remedy = (
            "MemorySwapMax=0 in the unit (cgroup v2), or swapoff -a (on a Jetson also nvzramconfig)"
        )
        said = f"{format_size(swap)}: weights in a buffer may be written away between requests"
        yield Finding("swap", "warn", said, remedy)
    else:
        yield Finding("swap", "ok", "none")


def heat(root: Path) -> Finding:
    """Whether a thermal zone is near where it slows the cores."""
    hottest, near = 0, []
    zones = sorted((root / "sys/class/thermal").glob("thermal_zone*"))
    for zone in zones:
        now = number(zone / "temp")
        if now is None:
            continue
        hottest = max(hottest, now)
        for trip in zone.glob("trip_point_*_type"):
            limit = number(trip.with_name(trip.name.replace("_type", "_temp")))
            if text(trip) == "passive" and limit is not None and 0 < limit <= now + _NEAR:
                near.append(
                    f"{text(zone / 'type') or zone.name} has {now / 1e3:.0f} of {limit / 1e3:.0f} C"
                )
    if near:
        return Finding(
            "heat", "warn", "; ".join(near), "cool it: from there on the kernel slows the cores"
        )
    said = f"at most {hottest / 1e3:.0f} C in {len(zones)} zones" if hottest else "no zones here"
    return Finding("heat", "ok", said)


def power(root: Path) -> Iterator[Finding]:
    """Power rails, and of a Jetson its board, mode and clocks."""
    meter = find_meter(root / "sys")
    if isinstance(meter, NoMeter):
        yield Finding("power", "ok", f"joules are {meter.source}")
    else:
        yield Finding("power", "ok", meter.source)
    board = text(root / "proc/device-tree/model")
    if not board:
        return
    yield Finding("board", "ok", board)
    if "Jetson" not in board:
        return
    mode = _mode(root)
    if mode is None:
        yield Finding(
            "power mode", "warn", "not known", "nvpmodel -q shows it, nvpmodel -m 0 sets it"
        )
    elif "Xavier" in board and mode not in _MODES:
        remedy = "nvpmodel -m 0 (or -m 3): others switch cores off"
        yield Finding("power mode", "warn", f"{mode}", remedy)
    else:
        yield Finding("power mode", "ok", f"{mode}")
    held = [
        _khz(policy, "scaling_min_freq") == _khz(policy, "scaling_max_freq")
        for policy in (root / _CPUS / "cpufreq").glob("policy*")
    ]
    gpu = next(iter(sorted((root / "sys/class/devfreq").glob("*gv11b*"))), None)
    said = "held" if held and all(held) else "they follow the load"
    if gpu is not None:
        now, most = number(gpu / "cur_freq") or 0, number(gpu / "max_freq") or 0
        said += f"; GPU {now / 1e6:.0f} of {most / 1e6:.0f} MHz"
    yield Finding(
        "board clocks", "ok", f"{said}; jetson_clocks holds them at the maximum of the mode"
    )


def _mode(root: Path) -> int | None:
    """Return the mode that nvpmodel keeps: pmode:0000 fmode:quiet."""
    for word in text(root / "var/lib/nvpmodel/status").split():
        name, _, value = word.partition(":")
        if name == "pmode" and value.isdecimal():
            return int(value)
    return None
