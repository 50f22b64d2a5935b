"""What the kernel says about this process."""

from pathlib import Path


def resident_bytes() -> int:
    """Return the resident set size, 0 where /proc is missing."""
    return _status_field("VmRSS")


def _status_field(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0
