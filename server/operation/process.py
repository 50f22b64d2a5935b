"""What the kernel and the installation say about this process."""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_RESIDENT = ("RssAnon", "RssFile", "RssShmem")


@dataclass(frozen=True)
class ProcessMemory:
    """What a process holds, in bytes.

    ``anonymous``: what no file backs, shared memory included; it goes only when it is given back.
    ``file``: pages of libraries, which the kernel may drop and read again.
    """

    anonymous: int
    file: int

    @property
    def resident(self) -> int:
        return self.anonymous + self.file


def process_memory(status: Path = Path("/proc/self/status")) -> ProcessMemory:
    """Return what this process holds now; zeros where ``status`` is missing."""
    try:
        lines = status.read_text(encoding="ascii").splitlines()
    except OSError:
        lines = []
    fields = {line.partition(":")[0]: line.split() for line in lines}
    n_bytes = {name: int(fields[name][1]) << 10 if name in fields else 0 for name in _RESIDENT}
    return ProcessMemory(n_bytes["RssAnon"] + n_bytes["RssShmem"], n_bytes["RssFile"])


def installed_version() -> str:
    """Return the version of Layerstream, "unknown" in a checkout that was not installed."""
    try:
        return version("layerstream")
    except PackageNotFoundError:
        return "unknown"
