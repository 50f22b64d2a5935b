"""What the kernel and the installation say about this process."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def resident_bytes() -> int:
    """Return the resident set size, 0 where /proc is missing."""
    return _status_field("VmRSS")


def installed_version() -> str:
    """Return the version of Layerstream, "unknown" in a checkout that was not installed."""
    try:
        return version("layerstream")
    except PackageNotFoundError:
        return "unknown"


def _status_field(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0
