"""What memory the system lets this process have: the limit of its control group, and what is free.

Read only, versions 1 and 2: systemd sets the limit (``MemoryMax=``), a container's runtime, or nobody.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from server.settings.sizes import format_size

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
    found = [limit for group in _groups(mount, membership) if (limit := _limit(group)) is not None]
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


def _groups(mount: Path, membership: Path) -> Iterator[Path]:
    """Yield the folders of the groups, in both versions; those that are not mounted here as well."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
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
