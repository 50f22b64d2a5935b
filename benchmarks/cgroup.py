"""A memory cgroup around a process: what the kernel counts, page cache included.

Works with version 1 and version 2 of the memory controller; needs the right to make a group (root).
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class _Version:
    """Where groups are made and what their files are called."""

    root: Path
    limit: str
    peak: str
    events: str


def _version() -> _Version:
    if (_V1 / "memory.limit_in_bytes").exists():
        files = ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control")
        return _Version(_V1, *files)
    if "memory" in _read(_V2 / "cgroup.subtree_control").split():
        return _Version(_V2, "memory.max", "memory.peak", "memory.events")
    raise OSError("no memory controller: neither cgroup v1 nor v2 lets this user make a group")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


class MemoryGroup:
    """One cgroup; processes enter it as they start."""

    def __init__(self, name: str, limit_bytes: int | None = None) -> None:
        self._version = _version()
        self.path = self._version.root / f"{name}-{os.getpid()}"
        self.path.mkdir()
        if limit_bytes is not None:
            (self.path / self._version.limit).write_text(str(limit_bytes), encoding="ascii")

    def start(
        self, command: Sequence[str], stderr: IO[str] | int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Start ``command`` inside the group."""
        return subprocess.Popen(
            self.inside(command),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            text=True,
        )

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that enters the group and then becomes ``command``."""
        enter = f'echo $$ > "{self.path}/cgroup.procs" && exec "$@"'
        return ["/bin/sh", "-c", enter, "sh", *command]

    @property
    def peak_bytes(self) -> int:
        """Return the most that was charged to the group at once."""
        return int(_read(self.path / self._version.peak) or 0)

    @property
    def oom_kills(self) -> int:
        """Return how many processes the kernel killed for want of memory."""
        for line in _read(self.path / self._version.events).splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
        return 0

    def remove(self) -> None:
        """Remove the group once its processes are gone."""
        for _ in range(50):
            try:
                self.path.rmdir()
                return
            except OSError:
                time.sleep(0.1)


@contextlib.contextmanager
def memory_group(name: str, limit_bytes: int | None = None) -> Iterator[MemoryGroup]:
    """Yield a group that is removed at the end."""
    group = MemoryGroup(name, limit_bytes)
    try:
        yield group
    finally:
        group.remove()
