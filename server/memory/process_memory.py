"""What memory the system lets this process have, and what a serving process takes beside its budget.

Read only, versions 1 and 2: systemd (``MemoryMax=``) or a container's runtime sets the limit, if there is
one.
"""

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from server.errors import RefusedError
from server.settings.settings import Settings
from server.settings.sizes import format_least, format_size

_MOUNT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_MEMORY = Path("/proc/meminfo")
# Version 1 has no word for "no limit" but a number that no machine has.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class MemoryLimit:
    """``held_bytes``: of the limit, what the kernel cannot drop: neither page cache nor files' pages."""

    limit_bytes: int
    held_bytes: int

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.held_bytes


def memory_limit(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP) -> MemoryLimit | None:
    """Return the nearest limit of this process's group and those around it; None: there is none."""
    groups = control_groups("memory", mount, membership)
    found = [limit for group in groups if (limit := _limit(group)) is not None]
    return min(found, key=lambda limit: limit.free_bytes, default=None)


def free_bytes(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP, memory: Path = _MEMORY) -> int:
    """Return what this process and others of its group may still take; 0: the system does not say."""
    limit, available = memory_limit(mount, membership), meminfo_bytes("MemAvailable", memory)
    return available if limit is None else min(available, limit.free_bytes)


def machine_bytes(
    mount: Path = _MOUNT, membership: Path = _MEMBERSHIP, memory: Path = _MEMORY
) -> tuple[int, str]:
    """Return the most that this process may ever hold, and in words whose limit that is; 0: unknown."""
    limit, total = memory_limit(mount, membership), meminfo_bytes("MemTotal", memory)
    if limit is not None and (not total or limit.limit_bytes < total):
        return limit.limit_bytes, f"the control group allows ({format_size(limit.limit_bytes)})"
    return total, f"this machine has ({format_size(total)})"


def meminfo_bytes(name: str, memory: Path = _MEMORY) -> int:
    """Return the figure ``name`` of /proc/meminfo; 0: the system does not say it."""
    try:
        lines = memory.read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
    except (OSError, ValueError, StopIteration):
        return 0


def memory_limited() -> str:
    """Return the limit in words for a status line, which may be the last one before it is met."""
    limit = memory_limit()
    return "" if limit is None else f" (memory limit {format_size(limit.limit_bytes)})"


def control_groups(
    controller: str, mount: Path = _MOUNT, membership: Path = _MEMBERSHIP
) -> Iterator[Path]:
    """Yield the folders of this process's groups of ``controller``, the nearest first, in both versions.

    Those that are not mounted here as well.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = mount / controllers if controllers else mount
        inside = PurePosixPath(path.lstrip("/"))
        yield from (root / part for part in (inside, *inside.parents))


def _limit(group: Path) -> MemoryLimit | None:
    """Return the limit of one group; None where it has none, or cannot be read."""
    try:
        if (group / "memory.max").exists():
            return _version_2(group)
        return _version_1(group)
    except (OSError, ValueError, KeyError):
        return None


def _version_2(group: Path) -> MemoryLimit | None:
    text = (group / "memory.max").read_text(encoding="ascii").strip()
    if text == "max":
        return None
    figures = _figures(group)
    # Shared memory is counted with files and cannot be dropped.
    droppable = figures["file"] - figures["shmem"] + figures.get("slab_reclaimable", 0)
    return MemoryLimit(int(text), _number(group / "memory.current") - droppable)


def _version_1(group: Path) -> MemoryLimit | None:
    limit = _number(group / "memory.limit_in_bytes")
    if limit >= _NO_LIMIT:
        return None
    figures = _figures(group)
    droppable = figures["total_cache"] - figures["total_shmem"]
    return MemoryLimit(limit, _number(group / "memory.usage_in_bytes") - droppable)


def _figures(group: Path) -> dict[str, int]:
    lines = (group / "memory.stat").read_text(encoding="ascii").splitlines()
    return {name: int(value) for name, _, value in (line.partition(" ") for line in lines)}


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


# What a serving process takes beside its budget, so that a user may say what all of it may take.
#
# It is a bound, known before anything is loaded: of what was measured in memory cgroups with all files of
# libraries out of the page cache (docs/research/process.md, "The process itself"), each part rounded up.

_MIB = 1 << 20
#: Interpreter and imported modules, which no file backs: 67.5 MiB, and 1.6 MiB more with each model that
#: was planned for its least (models of 4 to 98 MB; what planners keep of them, and holes in the heap).
_INTERPRETER_BYTES = 68 * _MIB
_MODEL_BYTES = 8 * _MIB // 5
#: Page tables, sockets, stacks in the kernel: 1.7 to 2.7 MiB.
_KERNEL_BYTES = 3 * _MIB
#: Above base and budget 1.5 MiB were measured. A search for a plan in the process itself takes up to 7.5 MB
#: for a moment, and what of it is not here presses on pages of libraries.
_HOLES_BYTES = 3 * _MIB
#: Pages of libraries. 48 MiB come to be mapped and the kernel may drop all; with 33 MB of them answers
#: came as fast as with all, with less than 30 they wait for the disk.
_LIBRARY_BYTES = 32 * _MIB
#: gRPC: 4 MB, and 7 MB of pages of its library.
_GRPC_BYTES = 12 * _MIB


def process_bytes(models: int, *, grpc: bool = False) -> int:
    """Return what a process that serves so many models takes beside the budget, from above."""
    own = _INTERPRETER_BYTES + _KERNEL_BYTES + _HOLES_BYTES + _LIBRARY_BYTES
    return own + models * _MODEL_BYTES + (_GRPC_BYTES if grpc else 0)


def given_bytes(settings: Settings) -> int:
    """Return what is given, ``memory`` or ``budget``.

    Raises:
        RefusedError: this machine, or its control group, has not as much memory.
    """
    given = settings.budget if settings.memory is None else settings.memory
    assert given is not None  # the settings have one of them
    available, owner = machine_bytes()
    if available and given // mmap.PAGESIZE > available // mmap.PAGESIZE:  # as groups count it
        name = "budget" if settings.memory is None else "memory"
        raise RefusedError(f"{name}: {format_size(given)} are more than {owner}")
    return given


def resolved_budget(settings: Settings, count: Callable[[], int]) -> int:
    """Return the budget: as it was given, or what ``memory`` leaves beside the process.

    ``count``: returns how many models are to be served.

    Raises:
        RefusedError: as above; or nothing would be left for models, or what the process takes is not known.
    """
    given = given_bytes(settings)
    if settings.memory is None:
        return given
    if settings.device != "cpu":
        raise RefusedError(
            f"memory: what a process takes with {settings.device} is its driver's; give --budget"
        )
    return budget_within(given, max(count(), 1), grpc=settings.grpc_port is not None)


def budget_within(memory_bytes: int, models: int, *, grpc: bool = False) -> int:
    """Return the budget that ``memory_bytes`` for all of the process leave; raises as above."""
    taken = process_bytes(models, grpc=grpc)
    if memory_bytes <= taken:
        raise RefusedError(
            f"memory: the process itself takes up to {format_least(taken)} with {models} "
            f"model{'s' * (models != 1)}, so {format_size(memory_bytes)} leave nothing for them"
        )
    return memory_bytes - taken
