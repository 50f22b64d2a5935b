"""What the kernel shows of a running process: CPU time, libraries, files, threads, connections."""

import contextlib
import os
from pathlib import Path

# Of /proc/net/tcp: ESTABLISHED, and CLOSE_WAIT (the client left, the process did not notice).
_OPEN_STATES = {"01", "08"}


def cpu_seconds(pid: int) -> float:
    """Return the seconds of CPU that all threads of ``pid`` took, in user and in kernel mode."""
    return sum(_ticks(pid)[:2]) / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """Return the processes that any thread of ``pid`` has started and that run."""
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # that thread has ended
            found += map(int, listed.read_text("ascii").split())
    return found


def cpu_seconds_of_all(pid: int) -> float:
    """Return the seconds of CPU of ``pid`` and its children, those that have ended included."""
    ticks = 0
    for number in (pid, *children(pid)):
        with contextlib.suppress(OSError):
            ticks += sum(_ticks(number))
    return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> list[int]:
    """Return the ticks of ``pid`` in user and kernel mode, and those of its children that it waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return [int(field) for field in fields[11:15]]


def event_loop(pid: int) -> dict[str, str]:
    """Return which event loop and HTTP parser the process has loaded, by the libraries it maps."""
    mapped = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    return {
        "loop": "uvloop" if "/uvloop/" in mapped else "asyncio",
        "http": "httptools" if "/httptools/" in mapped else "h11",
    }


def threads(pid: int) -> int:
    """Return how many threads ``pid`` has."""
    return len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208


def open_files(pid: int) -> int:
    """Return how many file descriptors ``pid`` has."""
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208


def connections(pid: int, port: int) -> int:
    """Return how many TCP connections to ``port`` the process holds that it has not closed."""
    held = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # closed since it was listed
            continue
        if target.startswith("socket:["):
            held.add(target[8:-1])
    count = 0
    for line in _tcp_lines():
        fields = line.split()
        local_port = int(fields[1].rpartition(":")[2], 16)
        count += local_port == port and fields[3] in _OPEN_STATES and fields[9] in held
    return count


def _tcp_lines() -> list[str]:
    lines = []
    for name in ("tcp", "tcp6"):
        path = Path("/proc/net", name)
        if path.exists():
            lines += path.read_text(encoding="ascii").splitlines()[1:]
    return lines
