"""What the kernel and the installation say about this process, and how its interpreter is set."""

import contextlib
import gc
import sys
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: A thread gives way so soon to one that waits for the interpreter; by itself it takes 5 ms, and a sweep
#: waits anew for each of its kernels.
_TURN_SECONDS = 0.0005
#: What libraries import when it is first used, by answers that stream: 0.5 MiB.
IMPORTED_LATE = ("anyio._backends._asyncio",)


def take_short_turns() -> None:
    """Let threads that plan or read requests give up the interpreter soon, since others compute."""
    sys.setswitchinterval(_TURN_SECONDS)


def pass_over_what_stays() -> None:
    """Have collections of garbage look at nothing that will always be there: libraries, schemas, the app.

    One that looks at all of it stops every thread for 60 ms. What comes afterwards is looked at: models
    that are loaded may go.
    """
    for name in IMPORTED_LATE:
        # Another version of a library may have the module in another place.
        with contextlib.suppress(ImportError):
            import_module(name)
    gc.collect()
    gc.freeze()
    # Python puts off a full collection until a quarter as much has come as the last one left: of what is
    # there now that would be 40,000 objects, 3.5 MiB of old plans.
    gc.collect()


# What the kernel and the installation say about this process.

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


@cache
def installed_version() -> str:
    """Return the version of Layerstream, "unknown" in a checkout that was not installed."""
    try:
        return version("layerstream")
    except PackageNotFoundError:
        return "unknown"
