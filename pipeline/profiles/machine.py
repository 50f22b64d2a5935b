"""What figures were measured on, and how one machine differs from another."""

import os
import platform
from collections.abc import Set
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Protocol

from loader.cores import Priority, reader_priority
from loader.readers.disk import REAL_DISK, Disk
from models.packs.target import host_target
from models.records import PositiveFloat, PositiveInt, Record

#: What a device or file system is called that the system does not name.
UNKNOWN = "unknown"
_MOUNTS = Path("/proc/self/mountinfo")
_PROC = Path("/proc")
# The maker of a core of Arm's architecture, and the name of the core.
_CORE = ("CPU implementer", "CPU part")

# With these a sweep takes some per cent more or less: a plan is as good, a bound is none. With any other
# difference times have another order of magnitude or another owner.
_SLIGHT = frozenset({"kernel", "reader_priority", "native_kernels"})
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@dataclass(frozen=True, kw_only=True)
class Machine(Record):
    """A machine with the storage that weights are read from. ``reader``: how the file is read.

    ``reader_priority``: of the threads that do. ``huge_pages``: whether the kernel gives large buffers
    2 MiB pages when asked to. ``native_kernels``: what those for operators on elements were made for;
    ``quantised_kernels``: those for quantised layers, which count where a pack has such layers.
    ``pace``: bytes a second of a disk that is none (loader/readers/disk.py); None: of a real one.
    """

    cpu: str
    cores: PositiveInt
    threads: PositiveInt
    isa: str
    onnxruntime: str
    kernel: str
    device: str
    file_system: str
    reader: str
    reader_priority: Priority
    huge_pages: bool
    gpu: str = ""
    native_kernels: str = "none"
    quantised_kernels: str = "none"
    pace: PositiveFloat | None = None

    def decisive_differences(self, other: "Machine", quantised: bool) -> list[str]:
        """Return in words the properties of ``other`` that differ from this one's and that times depend on.

        ``quantised``: those of a pack with quantised layers.
        """
        ignored = _SLIGHT if quantised else _SLIGHT | {"quantised_kernels"}
        return self._differences(other, {field.name for field in fields(self)} - ignored)

    def slight_differences(self, other: "Machine") -> list[str]:
        """Return the same of what makes times less exact, and bounds invalid."""
        return self._differences(other, _SLIGHT)

    def _differences(self, other: "Machine", names: Set[str]) -> list[str]:
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{name.replace('_', ' ')} {mine[name]}, this machine has {theirs[name]}"
            for name in mine
            if name in names and mine[name] != theirs[name]
        ]


class Computing(Protocol):
    """A device, as far as times depend on it."""

    @property
    def threads(self) -> int: ...

    @property
    def gpu(self) -> str: ...

    @property
    def native_kernels(self) -> str: ...

    @property
    def quantised_kernels(self) -> str: ...


def this_machine(weights: Path, computing: Computing, disk: Disk = REAL_DISK) -> Machine:
    """Return this machine, computing by ``computing`` and reading the file ``weights`` from ``disk``.

    Raises:
        ReadError: the file cannot be read.
    """
    reader = disk.open(weights)
    reader.close()
    device, file_system = _storage(weights.resolve())
    target = host_target()
    return Machine(
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        threads=computing.threads,
        isa=target.isa,
        onnxruntime=target.onnxruntime,
        kernel=f"{platform.system()} {platform.release()}",
        device=device,
        file_system=file_system,
        reader=reader.kind,
        reader_priority=reader_priority(),
        huge_pages=_has_huge_pages(),
        gpu=computing.gpu,
        native_kernels=computing.native_kernels,
        quantised_kernels=computing.quantised_kernels,
        pace=disk.bytes_per_second,
    )


def cpu_model(proc: Path = _PROC) -> str:
    """Return the processor's name as the kernel gives it: of Arm's cores the board and their part numbers.

    Where there is a name on Arm, it says no more than which generation they are.
    """
    try:
        lines = (proc / "cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    fields = [
        (name.strip(), said.strip()) for name, _, said in (line.partition(":") for line in lines)
    ]
    name = next((said for field, said in fields if field == "model name"), "")
    parts = [said for field, said in fields if field in _CORE]
    if not parts:
        return name or platform.processor()
    # An implementer and a part for each core, which may be of several kinds.
    cores = dict.fromkeys(map("/".join, zip(parts[::2], parts[1::2], strict=False)))
    return f"{_board(proc) or name or platform.machine()}, {' + '.join(cores)}"


def _board(proc: Path) -> str:
    """Return what firmware says that this computer is; empty: nothing."""
    try:
        told = (proc / "device-tree" / "model").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    return told.strip("\0\n ")


def _storage(file: Path) -> tuple[str, str]:
    """Return device and file system of the innermost mount that holds ``file``."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return UNKNOWN, UNKNOWN
    storage = (UNKNOWN, UNKNOWN)
    longest = -1
    for line in lines:
        mount, _, source = line.partition(" - ")
        point = Path(mount.split()[4].replace("\\040", " "))
        # Of several mounts on one folder the last one counts.
        if file.is_relative_to(point) and len(point.parts) >= longest:
            file_system, device = source.split()[:2]
            storage, longest = (device, file_system), len(point.parts)
    return storage


def _has_huge_pages() -> bool:
    try:
        return "[never]" not in _HUGE_PAGES.read_text(encoding="ascii")
    except OSError:
        return False
