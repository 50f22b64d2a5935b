"""What the kernel shows of a running process: CPU time, libraries, files, threads, connections."""

import os
from pathlib import Path

# Of /proc/net/tcp: ESTABLISHED, and CLOSE_WAIT (the client left, the process did not notice).
_OPEN_STATES = {"01", "08"}


def cpu_seconds(pid: int) -> float:
    """Return the seconds of CPU that all threads of ``pid`` took, in user and in kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
