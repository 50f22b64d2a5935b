"""The checks of `doctor`: the processor, memory and clocks of a machine, and the disks of packs.

``root`` of each: where the folders /proc and /sys lie.
"""

import logging
import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cli.printing.sentences import typed
from loader.native.compiling import LibraryError
from loader.native.library import find_reader
from loader.readers.disk import REAL_DISK, Disk
from models.errors import PackError
from models.packs.folders import find_pack
from models.packs.pack import Pack, open_pack
from models.packs.target import host_target
from models.runtime.sessions import threads_of_device
from models.sizes import format_size
from pipeline.budget.budget import Budget
from pipeline.budget.candidates import Candidate, needed_by_all, share_served
from pipeline.budget.errors import RefusedError
from pipeline.devices.base import Device
from pipeline.devices.elementwise.library import find_library
from pipeline.devices.elementwise.operator_node import why_not_shared
from pipeline.energy import NoMeter, find_meter
from pipeline.fitting.wanted import NOTHING
from pipeline.measuring.profiling import ProcessorTimes, file_reads, others_share
from pipeline.measuring.transfers import FileReads, sizes
from pipeline.profiles.machine import UNKNOWN, Machine, cpu_model, this_machine
from pipeline.profiles.profile import Profile, ProfileError, is_disturbed
from pipeline.profiles.profile_file import FILE, disturbed_by, load_profile, prepared
from pipeline.schedule.architectures import ARCHITECTURES
from server.faults import FAILURES, reason_of
from server.memory.process_memory import control_groups, meminfo_bytes
from server.repository.on_disk import check_whole

# The result of one check.

#: fail: it does not serve so. warn: it serves, slower or less surely than it could.
Verdict = Literal["ok", "warn", "fail"]
_ORDER: tuple[Verdict, ...] = ("ok", "warn", "fail")


@dataclass(frozen=True)
class Finding:
    """``reason``: what was found; ``remedy``: what to do about it, empty where all is well."""

    check: str
    verdict: Verdict
    reason: str
    remedy: str = ""


def worst(findings: list[Finding]) -> Verdict:
    """Return the worst verdict."""
    return max((finding.verdict for finding in findings), key=_ORDER.index, default="ok")


def _text(path: Path) -> str:
    """Return what a file of the kernel's says in one line; empty: it is not there, or not to be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").replace("\0", "").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the number in a file of the kernel's, None: there is none."""
    try:
        return int(_text(path))
    except ValueError:
        return None


# Looks at the machine itself: processor, clocks, other work, memory's pages, and what a Jetson has.

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
    reader = find_reader()
    if isinstance(reader, LibraryError):
        build = "install a C compiler (gcc libc6-dev), then python -m loader.native.building"
        yield Finding("native reads", "warn", f"none, so weights come later: {reader}", build)
    else:
        yield Finding("native reads", "ok", "threads in C")


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
    """Return how many cores the control group and those around it may use, None: all."""
    groups = control_groups("cpu", root / "sys/fs/cgroup", root / "proc/self/cgroup")
    return min((cores for group in groups if (cores := _cores_of(group)) is not None), default=None)


def _cores_of(group: Path) -> float | None:
    """Return how many cores one group may use, None: all, or it does not say."""
    limit, _, period = _text(group / "cpu.max").partition(" ")
    if not limit:
        limit, period = _text(group / "cpu.cfs_quota_us"), _text(group / "cpu.cfs_period_us")
    try:
        return int(limit) / int(period) if int(limit) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def cores_online(root: Path) -> Finding:
    """Whether all cores of the machine are on."""
    online, present = _text(root / _CPUS / "online"), _text(root / _CPUS / "present")
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
    source = _text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source in _SLOW_CLOCKS:
        remedy = "boot with clocksource=tsc (or kvm-clock in a guest), if the machine has it"
        yield Finding("clock", "warn", f"{source}: to look at it takes a microsecond", remedy)
    else:
        yield Finding("clock", "ok", source or "the kernel does not say which")
    policies = sorted((root / _CPUS / "cpufreq").glob("policy*"))
    governors = {_text(policy / "scaling_governor") for policy in policies} - {""}
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
    return _number(policy / name) or 0


def pages(root: Path) -> Iterator[Finding]:
    """Huge pages, and whether memory may be written to swap."""
    policy = _text(root / "sys/kernel/mm/transparent_hugepage/enabled")
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
        now = _number(zone / "temp")
        if now is None:
            continue
        hottest = max(hottest, now)
        for trip in zone.glob("trip_point_*_type"):
            limit = _number(trip.with_name(trip.name.replace("_type", "_temp")))
            if _text(trip) == "passive" and limit is not None and 0 < limit <= now + _NEAR:
                near.append(
                    f"{_text(zone / 'type') or zone.name} has {now / 1e3:.0f} of {limit / 1e3:.0f} C"
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
    board = _text(root / "proc/device-tree/model")
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
    are_fixed = [
        _khz(policy, "scaling_min_freq") == _khz(policy, "scaling_max_freq")
        for policy in (root / _CPUS / "cpufreq").glob("policy*")
    ]
    gpu = next(iter(sorted((root / "sys/class/devfreq").glob("*gv11b*"))), None)
    said = "held" if are_fixed and all(are_fixed) else "they follow the load"
    if gpu is not None:
        now, most = _number(gpu / "cur_freq") or 0, _number(gpu / "max_freq") or 0
        said += f"; GPU {now / 1e6:.0f} of {most / 1e6:.0f} MHz"
    yield Finding(
        "board clocks", "ok", f"{said}; jetson_clocks holds them at the maximum of the mode"
    )


def _mode(root: Path) -> int | None:
    """Return the mode that nvpmodel keeps: pmode:0000 fmode:quiet."""
    for word in _text(root / "var/lib/nvpmodel/status").split():
        name, _, value = word.partition(":")
        if name == "pmode" and value.isdecimal():
            return int(value)
    return None


# Looks at packs and where they lie: O_DIRECT, the disk's scheduler, its speed beside the profile's.

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
_DEPTH = 2
#: Sizes of reads that are timed: the largest that sweeps take, and rounds of each.
_SIZES, _ROUNDS = 2, 2
#: Bytes a second below which streaming is slow whatever a network computes.
_SLOW = 5e8
#: Reads of smaller packs say how soon a disk answers, and not how fast it is.
_TELLING_BYTES = 1 << 20
#: A read that takes so many times as long as when it was profiled: plans are off; another disk.
_SLOWER, _OTHER_DISK = 1.5, 4.0
#: Checksums of packs that are read as soon are verified without a request for that.
_FULL_SECONDS = 1.0


def findings(
    path: Path, device: Device, disk: Disk = REAL_DISK, *, full: bool = False
) -> Iterator[Finding]:
    """Yield what there is to say of the pack in ``path``, as ``device`` runs it.

    ``full``: its weights are verified also where that takes long.
    """
    try:
        pack = open_pack(path, device.target)
        machine = this_machine(pack.weights_path, device, disk)
        name = _served_as(path, pack)
        yield Finding(name, "ok", f"version {pack.version} in {pack.folder}, of this format")
        yield _direct(name, machine)
        yield from _scheduler(name, pack, ROOT)
        told, profile = _profile(name, pack, machine)
        yield told
        speed, bytes_per_second = _speed(name, pack, profile, disk)
        yield speed
        yield _checksums(name, pack, bytes_per_second, full)
    except FAILURES as exc:
        remedy = "compile its source again here, or copy it again"
        if not _holds_pack(path):
            remedy = "name a pack: REPOSITORY/NAME"
        yield Finding(str(path), "fail", reason_of(exc), remedy)


def _served_as(path: Path, pack: Pack) -> str:
    """Return the name by which clients would ask the pack in ``path``: its folder's, and no version's."""
    folder = path.resolve()
    is_version = folder == pack.folder.resolve() and folder.name.isdecimal()
    return folder.parent.name if is_version else folder.name


def _holds_pack(path: Path) -> bool:
    try:
        return find_pack(path).is_dir()
    except (PackError, OSError):
        return False


def fitting(paths: Sequence[Path], budget: int | None, device: Device) -> Iterator[Finding]:
    """Yield what each pack needs, and whether all, and requests to them, fit in ``budget`` bytes.

    None: no budget is given. What a GPU needs is not looked at.
    """
    if device.gpu:
        return
    auto = device.adapt(ARCHITECTURES["auto"])
    candidates = []
    try:
        for path in paths:
            pack = open_pack(path, device.target)
            program, profile = prepared(pack, device, logging.DEBUG)
            candidates.append(Candidate(program, auto, NOTHING, profile))
            least = typed(needed_by_all(candidates[-1:], "auto"))
            weights = format_size(pack.manifest.weight_bytes)
            told = f"{weights} of weights, served alone from a budget of {least} up"
            yield Finding(f"{_served_as(path, pack)}: memory", "ok", told)
        if budget is None or not candidates:
            return
        if budget <= 0:
            raise RefusedError(
                f"the process itself takes {format_size(-budget)} more than --memory"
            )
        share_served(candidates, Budget(budget), None, "auto", at_once=True)
        together = typed(needed_by_all(candidates, "auto"))
    except FAILURES as exc:
        yield Finding("budget", "fail", reason_of(exc), "a larger --memory or --budget")
    else:
        told = f"models and requests fit in {format_size(budget)}; they do from {together} up"
        yield Finding("budget", "ok", told)


def _direct(served: str, machine: Machine) -> Finding:
    name, where = f"{served}: O_DIRECT", f"{machine.file_system} on {machine.device}"
    if machine.file_system == UNKNOWN:
        where = "a file system that /proc/self/mountinfo does not name"
    if machine.file_system in _IN_MEMORY:
        remedy = "keep packs on a local SSD: there they take as much memory as they are long"
        return Finding(name, "warn", f"{where} is memory, no disk", remedy)
    if machine.reader != "direct":
        remedy = "ext4 or XFS on a local SSD takes it"
        return Finding(name, "warn", f"{where} refuses it: reads go through the page cache", remedy)
    return Finding(name, "ok", where)


def _scheduler(served: str, pack: Pack, root: Path) -> Iterator[Finding]:
    number = pack.weights_path.stat().st_dev
    block = root / f"sys/dev/block/{number >> 8 & 0xFFF}:{number & 0xFF | number >> 12 & ~0xFF}"
    place = next(
        (each for each in (block, block.resolve().parent) if (each / "queue").is_dir()), None
    )
    if place is None:
        return
    chosen = _text(place / "queue/scheduler").partition("[")[2].partition("]")[0]
    name = f"{served}: scheduler"
    weighs = (
        "; IOWeight acts" if chosen == "bfq" else "; IOWeight of a unit acts under bfq or iocost"
    )
    if chosen == "cfq":
        yield Finding(name, "warn", chosen, f"echo mq-deadline > {place}/queue/scheduler")
    else:
        yield Finding(name, "ok", f"{chosen or 'none'}{weighs}")


def _profile(served: str, pack: Pack, machine: Machine) -> tuple[Finding, Profile | None]:
    """Return what there is to say of the profile, and the one that plans follow."""
    name, remedy = f"{served}: profile", f"layerstream profile {pack.folder}"
    try:
        profile = load_profile(pack, machine, logging.DEBUG)
    except ProfileError as exc:
        missing = not (pack.folder / FILE).exists()
        why = "none, so plans follow estimates" if missing else str(exc)
        return Finding(name, "warn", why, remedy), None
    if profile.was_disturbed:
        return Finding(name, "warn", disturbed_by(profile.others), remedy), profile
    if not profile.exact:
        why = "of a machine that differs a little: no bound on delays holds"
        return Finding(name, "warn", why, remedy), profile
    return Finding(name, "ok", "of this machine"), profile


def _checksums(served: str, pack: Pack, bytes_per_second: float, full: bool) -> Finding:
    """Verify all weights, if that is wanted (``full``) or takes no time."""
    name, n_bytes = f"{served}: checksums", pack.weights_path.stat().st_size
    seconds = n_bytes / bytes_per_second if bytes_per_second else math.inf
    if not full and seconds > _FULL_SECONDS:
        reason = f"not verified: {format_size(n_bytes)} take {seconds:.0f} s; --full does it"
        return Finding(name, "ok", reason)
    try:
        check_whole(pack.folder)
    except (PackError, OSError) as exc:
        hint = "copy it again, or compile its source again here; then look at the disk (dmesg)"
        return Finding(name, "fail", reason_of(exc), hint)
    return Finding(name, "ok", f"all {format_size(n_bytes)} of weights are those of the manifest")


def _speed(served: str, pack: Pack, profile: Profile | None, disk: Disk) -> tuple[Finding, float]:
    """Time reads of the sizes that sweeps take; beside those of the profile where there is one.

    Return also how many bytes a second there were.
    """
    name = f"{served}: reads"
    ratios, speed = [], 0.0
    with file_reads(pack, disk) as reads:
        is_telling = reads.n_bytes >= _TELLING_BYTES
        for n_bytes in sizes(reads.n_bytes)[-_SIZES:]:
            began, taken = time.perf_counter(), _taken(reads, n_bytes)
            speed = max(speed, len(taken) * n_bytes / (time.perf_counter() - began))
            if profile is not None:
                usual = profile.times.read(n_bytes, _DEPTH)
                ratios.append(statistics.median(taken) / usual)
    told = f"{speed / 1e9:.2f} GB/s"
    if not ratios and speed < _SLOW and is_telling:
        hint = "keep packs on an NVMe SSD: requests read them again"
        return Finding(name, "warn", told, hint), speed
    if not ratios:
        return Finding(name, "ok", told), speed
    ratio = min(ratios)
    told = f"{told}, {ratio:.1f} times the profile's time of a read"
    if ratio < _SLOWER:
        return Finding(name, "ok", told), speed
    remedy = "see who else uses the disk (iostat); if it is another one, layerstream profile again"
    return Finding(name, "warn" if ratio < _OTHER_DISK else "fail", told, remedy), speed


def _taken(reads: FileReads, n_bytes: int) -> list[float]:
    """Return the seconds of some reads of ``n_bytes``."""
    return [each for turn in range(_ROUNDS) for each in reads.row(n_bytes, _DEPTH, turn)]
