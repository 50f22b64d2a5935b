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
    """Where groups are made, what their files are called, and two names in memory.stat."""

    root: Path
    limit: str
    usage: str
    peak: str
    events: str
    anonymous: str
    file: str


def _version() -> _Version:
    if (_V1 / "memory.limit_in_bytes").exists():
        return _Version(
            _V1,
            limit="memory.limit_in_bytes",
            usage="memory.usage_in_bytes",
            peak="memory.max_usage_in_bytes",
            events="memory.oom_control",
            anonymous="rss",
            file="cache",
        )
    if "memory" in _read(_V2 / "cgroup.subtree_control").split():
        return _Version(
            _V2,
            limit="memory.max",
            usage="memory.current",
            peak="memory.peak",
            events="memory.events",
            anonymous="anon",
            file="file",
        )
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
        return self._fields(self._version.events).get("oom_kill", 0)

    def usage(self) -> dict[str, int]:
        """Return the bytes charged to the group now: in all, anonymous memory, files and page cache."""
        fields = self._fields("memory.stat")
        return {
            "total": int(_read(self.path / self._version.usage) or 0),
            "anonymous": fields.get(self._version.anonymous, 0),
            "file": fields.get(self._version.file, 0),
        }

    def _fields(self, name: str) -> dict[str, int]:
        pairs = (line.split() for line in _read(self.path / name).splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}

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
