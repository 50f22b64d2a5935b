"""Looks at packs and where they lie: O_DIRECT, the disk's scheduler, its speed beside the profile's."""

import logging
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from cli.checks.finding import Finding, text
from cli.checks.machine import ROOT
from loader.readers.disk import REAL_DISK, Disk
from models.packs.pack import Pack, open_pack
from pipeline.devices.base import Device
from pipeline.fitting.wanted import NOTHING
from pipeline.measuring.profiling import file_reads
from pipeline.measuring.transfers import FileReads, sizes
from pipeline.profiles.machine import Machine, this_machine
from pipeline.profiles.profile import Profile, ProfileError
from pipeline.profiles.profile_file import FILE, disturbed_by, load_profile, prepared
from pipeline.schedule.architectures import ARCHITECTURES
from server.errors import RefusedError
from server.failures import FAILURES, reason_of
from server.memory.budget import Budget
from server.memory.candidates import Candidate, share_served
from server.settings.sizes import format_size

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


def findings(path: Path, device: Device, disk: Disk = REAL_DISK) -> Iterator[Finding]:
    """Yield what there is to say of the pack in ``path``, as ``device`` runs it."""
    try:
        pack = open_pack(path, device.target)
        machine = this_machine(pack.weights_path, device, disk)
        yield Finding(f"{pack.name}", "ok", f"version {pack.version} in {pack.folder}, sound")
        yield _direct(pack, machine)
        yield from _scheduler(pack, ROOT)
        told, profile = _profile(pack, machine)
        yield told
        yield _speed(pack, profile, disk)
    except FAILURES as exc:
        yield Finding(
            str(path), "fail", reason_of(exc), "compile its source again here, or copy it again"
        )


def fitting(paths: Sequence[Path], budget: int | None, device: Device) -> Iterator[Finding]:
    """Yield whether all packs, and requests to them, fit in ``budget`` bytes, where these are given."""
    if budget is None or not paths or device.gpu:
        return
    auto = device.adapt(ARCHITECTURES["auto"])
    try:
        candidates = [
            Candidate(program, auto, NOTHING, profile)
            for program, profile in (
                prepared(open_pack(path, device.target), device, logging.DEBUG) for path in paths
            )
        ]
        if budget <= 0:
            raise RefusedError("the process itself takes more than --memory")
        share_served(candidates, Budget(budget), None, "auto", at_once=True)
    except FAILURES as exc:
        yield Finding("budget", "fail", reason_of(exc), "a larger --memory or --budget")
    else:
        yield Finding("budget", "ok", f"models and requests fit in {format_size(budget)}")


def _direct(pack: Pack, machine: Machine) -> Finding:
    name, where = f"{pack.name}: O_DIRECT", f"{machine.file_system} on {machine.device}"
    if machine.file_system in _IN_MEMORY:
        remedy = "keep packs on a local SSD: there they take as much memory as they are long"
        return Finding(name, "warn", f"{where} is memory, no disk", remedy)
    if machine.reader != "direct":
        remedy = "ext4 or XFS on a local SSD takes it"
        return Finding(name, "warn", f"{where} refuses it: reads go through the page cache", remedy)
    return Finding(name, "ok", where)


def _scheduler(pack: Pack, root: Path) -> Iterator[Finding]:
    number = pack.weights_path.stat().st_dev
    block = root / f"sys/dev/block/{number >> 8 & 0xFFF}:{number & 0xFF | number >> 12 & ~0xFF}"
    place = next(
        (each for each in (block, block.resolve().parent) if (each / "queue").is_dir()), None
    )
    if place is None:
        return
    chosen = text(place / "queue/scheduler").partition("[")[2].partition("]")[0]
    name = f"{pack.name}: scheduler"
    weighs = (
        "; IOWeight acts" if chosen == "bfq" else "; IOWeight of a unit acts under bfq or iocost"
    )
    if chosen == "cfq":
        yield Finding(name, "warn", chosen, f"echo mq-deadline > {place}/queue/scheduler")
    else:
        yield Finding(name, "ok", f"{chosen or 'none'}{weighs}")


def _profile(pack: Pack, machine: Machine) -> tuple[Finding, Profile | None]:
    """Return what there is to say of the profile, and the one that plans follow."""
    name, remedy = f"{pack.name}: profile", f"layerstream profile {pack.folder}"
    try:
        profile = load_profile(pack, machine, logging.DEBUG)
    except ProfileError as exc:
        missing = not (pack.folder / FILE).exists()
        why = "none, so plans follow rules of thumb" if missing else str(exc)
        return Finding(name, "warn", why, remedy), None
    if profile.was_disturbed:
        return Finding(name, "warn", disturbed_by(profile.others), remedy), profile
    if not profile.exact:
        why = "of a machine that differs a little: no bound on delays holds"
        return Finding(name, "warn", why, remedy), profile
    return Finding(name, "ok", "of this machine"), profile


def _speed(pack: Pack, profile: Profile | None, disk: Disk) -> Finding:
    """Time reads of the sizes that sweeps take; beside those of the profile where there is one."""
    name = f"{pack.name}: reads"
    ratios, speed = [], 0.0
    with file_reads(pack, disk) as reads:
        is_telling = reads.n_bytes >= _TELLING_BYTES
        for n_bytes in sizes(reads.n_bytes)[-_SIZES:]:
            began, taken = time.perf_counter(), _taken(reads, n_bytes)
            speed = max(speed, len(taken) * n_bytes / (time.perf_counter() - began))
            if profile is not None:
                usual = profile.read_seconds(n_bytes, _DEPTH)
                ratios.append(statistics.median(taken) / usual)
    told = f"{speed / 1e9:.2f} GB/s"
    if not ratios and speed < _SLOW and is_telling:
        return Finding(name, "warn", told, "keep packs on an NVMe SSD: requests read them again")
    if not ratios:
        return Finding(name, "ok", told)
    ratio = min(ratios)
    told = f"{told}, {ratio:.1f} times the profile's time of a read"
    if ratio < _SLOWER:
        return Finding(name, "ok", told)
    remedy = "see who else uses the disk (iostat); if it is another one, layerstream profile again"
    return Finding(name, "warn" if ratio < _OTHER_DISK else "fail", told, remedy)


def _taken(reads: FileReads, n_bytes: int) -> list[float]:
    """Return the seconds of some reads of ``n_bytes``."""
    return [each for turn in range(_ROUNDS) for each in reads.row(n_bytes, _DEPTH, turn)]
