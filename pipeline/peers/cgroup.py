"""A memory cgroup around a process: what the kernel charges it with, page cache included.

Works with version 1 and version 2 of the memory controller; needs the right to make a group (root).
A page of a file is charged to the group that touches it first, and to no other: what was in the page
cache before is free. So that a figure holds for a fresh machine, benchmarks/machine/environment.py gives a
process files of its own.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from models.processes import child_environment

_V1 = Path("/sys/fs/cgroup/memory")
_V2 = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Usage:
    """Bytes in memory by kind.

    ``total``: both, and what the kernel keeps for a process (page tables, sockets). ``anonymous``: heap,
    stacks, shared memory; without swap it cannot be given back while it is used. ``file``: pages of files,
    read or mapped; the kernel takes them back when it needs room.
    """

    total: int
    anonymous: int
    file: int


@dataclass(frozen=True)
class Controller:
    """Where groups are made, what their files are called, and two names in memory.stat."""

    root: Path
    limit: str
    swap: tuple[str, str | None]
    """The file of the limit on swap, and what to write there (None: the limit itself)."""
    usage: str
    peak: str
    events: str
    anonymous: str
    file: str

    def parse(self, total: str, stat: Mapping[str, int]) -> Usage:
        """Return what the texts of a group say; files in memory (tmpfs) count as anonymous."""
        shared = stat.get("shmem", 0)
        anonymous = stat.get(self.anonymous, 0) + shared
        return Usage(int(total or 0), anonymous, max(0, stat.get(self.file, 0) - shared))


def find_controller(v1: Path = _V1, v2: Path = _V2) -> Controller:
    """Return the memory controller of this machine.

    Raises:
        OSError: there is none that lets this user make groups.
    """
    if (v1 / "memory.limit_in_bytes").exists():
        return Controller(
            v1,
            limit="memory.limit_in_bytes",
            swap=("memory.memsw.limit_in_bytes", None),
            usage="memory.usage_in_bytes",
            peak="memory.max_usage_in_bytes",
            events="memory.oom_control",
            anonymous="rss",
            file="cache",
        )
    if "memory" in _read(v2 / "cgroup.subtree_control").split():
        return Controller(
            v2,
            limit="memory.max",
            swap=("memory.swap.max", "0"),
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


def fields(text: str) -> dict[str, int]:
    """Return the lines "name number" of ``text``; others are left out."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}


def enter(file: Path, command: Sequence[str]) -> list[str]:
    """Return the command that writes its process number to ``file`` and then becomes ``command``."""
    return ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(file), *command]


class MemoryGroup:
    """One cgroup; processes enter it as they start. With a limit it has no swap."""

    def __init__(
        self, name: str, limit_bytes: int | None = None, controller: Controller | None = None
    ) -> None:
        """Make the group.

        Raises:
            OSError: this user may not, or there is no controller.
        """
        self._controller = controller or find_controller()
        self.path = self._controller.root / f"{name}-{os.getpid()}"
        self.path.mkdir()
        if limit_bytes is not None:
            self._limit(limit_bytes)

    def _limit(self, limit_bytes: int) -> None:
        (self.path / self._controller.limit).write_text(str(limit_bytes), encoding="ascii")
        file, text = self._controller.swap
        # Absent where the kernel does not account for swap.
        with contextlib.suppress(OSError):
            (self.path / file).write_text(text or str(limit_bytes), encoding="ascii")

    def start(
        self, command: Sequence[str], stderr: IO[str] | int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Start ``command`` inside the group, with the environment of a process of ours."""
        return subprocess.Popen(  # noqa: S603  what the caller measures
            self.inside(command),
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            text=True,
            env=child_environment(),
        )

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that enters the group and then becomes ``command``."""
        return enter(self.path / "cgroup.procs", command)

    @property
    def peak_bytes(self) -> int:
        """Return the most that was charged at once; 0 where the kernel does not say (before 5.19)."""
        return int(_read(self.path / self._controller.peak) or 0)

    @property
    def oom_kills(self) -> int:
        """Return how many processes the kernel killed for want of memory."""
        return fields(_read(self.path / self._controller.events)).get("oom_kill", 0)

    def usage(self) -> Usage:
        """Return what is charged to the group now."""
        stat = fields(_read(self.path / "memory.stat"))
        return self._controller.parse(_read(self.path / self._controller.usage), stat)

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
