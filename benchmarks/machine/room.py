"""Where a process that is measured runs: a memory cgroup, or what an ordinary user has instead."""

import contextlib
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from benchmarks.servers.client import process_memory
from pipeline.peers.cgroup import Usage, enter, memory_group


class Room(Protocol):
    """Where one process runs, and what is known of its memory."""

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that enters and then becomes ``command``."""

    def usage(self) -> Usage:
        """Return what is in memory now."""

    @property
    def peak_bytes(self) -> int:
        """Return the most that was in memory at once; 0: not known."""

    @property
    def oom_kills(self) -> int:
        """Return how many processes the kernel killed for want of memory."""


#: Opens a room by a name and a limit in bytes.
Rooms = Callable[[str, int | None], AbstractContextManager[Room]]


class OpenRoom:
    """No limit: the resident set of a process, files that other processes have mapped, too, included."""

    peak_bytes = 0
    oom_kills = 0

    def __init__(self, folder: Path) -> None:
        self._entered = folder / "pid"

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that writes its process number and then becomes ``command``."""
        return enter(self._entered, command)

    def usage(self) -> Usage:
        """Return the resident set of the process that entered.

        Raises:
            OSError: it has ended.
        """
        if not self._entered.exists() or not (pid := self._entered.read_text("ascii").strip()):
            return Usage(0, 0, 0)
        memory = process_memory(int(pid))
        anonymous = memory["rss_bytes"] - memory["rss_file_bytes"]
        return Usage(memory["rss_bytes"], anonymous, memory["rss_file_bytes"])


@contextlib.contextmanager
def open_room(name: str, limit_bytes: int | None = None) -> Iterator[OpenRoom]:
    """Yield a room that keeps no limit."""
    del limit_bytes
    with tempfile.TemporaryDirectory(prefix=name) as folder:
        yield OpenRoom(Path(folder))


def find_rooms() -> tuple[Rooms, str]:
    """Return the rooms that this user can have, and why they keep no limit (empty: they do)."""
    try:
        with memory_group("layerstream-try", 1 << 30) as group:
            # Entering is what containers forbid most often.
            if subprocess.run(
                group.inside(["true"]), stderr=subprocess.DEVNULL, check=False
            ).returncode:
                raise PermissionError("no right to enter a memory cgroup")
    except OSError as exc:
        return open_room, str(exc)
    return memory_group, ""
