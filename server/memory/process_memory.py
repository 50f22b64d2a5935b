"""How much memory the system lets a process have, and how much a serving one takes beside its budget.

The limit of the control group, if there is one, is only read here, in versions 1 and 2 of control groups:
systemd (``MemoryMax=``) or the runtime of a container has set it.
"""

import mmap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from models.interpreter import servers_are_lean
from models.sizes import format_least, format_size
from pipeline.budget.errors import RefusedError
from server.settings.settings import Settings

_MOUNT = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")
_MEMORY = Path("/proc/meminfo")
# In version 1 a number that no machine has means that there is no limit.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class MemoryLimit:
    """The limit of a group; ``held_bytes``: the part in use that the kernel cannot drop as page cache."""

    limit_bytes: int
    held_bytes: int

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.held_bytes


def memory_limit(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP) -> MemoryLimit | None:
    """Return the limit that leaves least, of this process's group and those above; None: there is none."""
    groups = control_groups("memory", mount, membership)
    limits = [limit for group in groups if (limit := _limit(group)) is not None]
    return min(limits, key=lambda limit: limit.free_bytes, default=None)


def free_bytes(mount: Path = _MOUNT, membership: Path = _MEMBERSHIP, memory: Path = _MEMORY) -> int:
    """Return the bytes that this process and others of its group may still take; 0: unknown."""
    limit, available = memory_limit(mount, membership), meminfo_bytes("MemAvailable", memory)
    return available if limit is None else min(available, limit.free_bytes)


#: Of the limit of a group an eighth shall stay free, and no more than what is left beside ``process_bytes``
#: of pages of libraries when all else is used.
_GROUP_RESERVE_BYTES, _GROUP_PART = 24 << 20, 8
#: What shall stay available on the machine: a fiftieth, and between so much.
_MACHINE_RESERVE_BYTES = 24 << 20, 256 << 20


def lacking_bytes(
    mount: Path = _MOUNT, membership: Path = _MEMBERSHIP, memory: Path = _MEMORY
) -> int | None:
    """Return how much less is free than shall be, in the group or on the machine, whichever lacks more.

    Negative where more is free; None: unknown.
    """
    lacking = []
    if limit := memory_limit(mount, membership):
        reserve = min(limit.limit_bytes // _GROUP_PART, _GROUP_RESERVE_BYTES)
        lacking.append(reserve - limit.free_bytes)
    total, available = (meminfo_bytes(name, memory) for name in ("MemTotal", "MemAvailable"))
    if total and available:
        low, high = _MACHINE_RESERVE_BYTES
        lacking.append(min(max(total // 50, low), high) - available)
    return max(lacking, default=None)


def spare_bytes() -> int | None:
    """Return the bytes that this process may take before the system ends one, with swap; None: unknown."""
    free = free_bytes()
    return free + meminfo_bytes("SwapFree") if free else None


def machine_bytes() -> tuple[int, str]:
    """Return the most bytes that this process may ever hold, and words for what limits it; 0: unknown."""
    limit, total = memory_limit(), meminfo_bytes("MemTotal")
    if limit is not None and (not total or limit.limit_bytes < total):
        return limit.limit_bytes, f"the control group allows ({format_size(limit.limit_bytes)})"
    return total, f"this machine has ({format_size(total)})"


def meminfo_bytes(name: str, memory: Path = _MEMORY) -> int:
    """Return the figure ``name`` of /proc/meminfo in bytes; 0: unknown."""
    try:
        lines = memory.read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
    except (OSError, ValueError, StopIteration):
        return 0


def memory_limited() -> str:
    """Return the limit in words for a status line: if it is exceeded, this line may be the last one."""
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
    # Shared memory counts as files, but cannot be dropped.
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


# What a serving process takes beside its budget, for users who limit the memory of the whole process.
#
# It is an upper bound that is known before models are loaded: the measured parts, each rounded up. They
# were measured in memory cgroups, with no library in the page cache (docs/research/process.md, "The process
# itself").

_MIB = 1 << 20
#: Anonymous memory of interpreter and imported modules: 66.4 MiB, and 58.5 without docstrings. Planning
#: the least memory of a model leaves 1.6 MiB more each time, in caches and holes of the heap (models of 4
#: to 98 MB).
INTERPRETER_BYTES, LEAN_INTERPRETER_BYTES = 68 * _MIB, 59 * _MIB
MODEL_BYTES = 8 * _MIB // 5
#: Page tables, sockets, stacks in the kernel: 1.7 to 2.7 MiB.
_KERNEL_BYTES = 3 * _MIB
#: 1.5 MiB were measured above base and budget. A search for a plan in this process takes up to 7.5 MB for a
#: moment; where that is more than this, the kernel drops pages of libraries.
_HOLES_BYTES = 3 * _MIB
#: Pages of libraries. 48 MiB are mapped in the end, and the kernel may drop all of them; with 33 MB of them
#: answers were as fast as with all, with less than 30 they waited for the disk.
_LIBRARY_BYTES = 32 * _MIB
#: gRPC: 4 MB, and 7 MB of pages of its library.
_GRPC_BYTES = 12 * _MIB


def process_bytes(models: int, *, grpc: bool = False) -> int:
    """Return an upper bound of the bytes that a process with so many models takes beside the budget."""
    interpreter = LEAN_INTERPRETER_BYTES if servers_are_lean() else INTERPRETER_BYTES
    own = interpreter + _KERNEL_BYTES + _HOLES_BYTES + _LIBRARY_BYTES
    return own + models * MODEL_BYTES + (_GRPC_BYTES if grpc else 0)


def given_bytes(settings: Settings) -> int:
    """Return what the settings give, ``memory`` or ``budget``.

    Raises:
        RefusedError: this machine, or its control group, has not as much memory.
    """
    chosen = settings.budget if settings.memory is None else settings.memory
    assert chosen is not None  # the settings have one of them
    available, owner = machine_bytes()
    if available and chosen // mmap.PAGESIZE > available // mmap.PAGESIZE:  # as groups count it
        name = "budget" if settings.memory is None else "memory"
        raise RefusedError(f"{name}: {format_size(chosen)} are more than {owner}")
    return chosen


def resolved_budget(settings: Settings, count: Callable[[], int]) -> int:
    """Return the budget: as it was given, or what ``memory`` leaves beside the process.

    ``count``: returns how many models are to be served.

    Raises:
        RefusedError: as above; or nothing would be left for models, or what the process takes is not known.
    """
    chosen = given_bytes(settings)
    if settings.memory is None:
        return chosen
    if settings.device != "cpu":
        raise RefusedError(
            f"memory: what a process takes with {settings.device} is its driver's; give --budget"
        )
    return budget_within(chosen, max(count(), 1), grpc=settings.grpc_port is not None)


def budget_within(memory_bytes: int, models: int, *, grpc: bool = False) -> int:
    """Return the budget that a process limited to ``memory_bytes`` leaves for models and requests.

    Raises:
        RefusedError: it leaves nothing.
    """
    own_bytes = process_bytes(models, grpc=grpc)
    if memory_bytes <= own_bytes:
        raise RefusedError(
            f"memory: the process itself takes up to {format_least(own_bytes)} with {models} "
            f"model{'s' * (models != 1)}, so {format_size(memory_bytes)} leave nothing for them"
        )
    return memory_bytes - own_bytes
