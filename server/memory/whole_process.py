"""What a serving process takes beside its budget, so that a user may say what all of it may take.

It is a bound, known before anything is loaded: of what was measured in memory cgroups with all files of
libraries out of the page cache (docs/research/process.md, "The process itself"), each part rounded up.
"""

import mmap
from collections.abc import Callable

from server.errors import RefusedError
from server.memory.cgroup import machine_bytes
from server.settings.settings import Settings
from server.settings.sizes import format_least, format_size

_MIB = 1 << 20
#: Interpreter and imported modules, which no file backs: 67.5 MiB, and 1.6 MiB more with each model that
#: was planned for its least (models of 4 to 98 MB; what planners keep of them, and holes in the heap).
_INTERPRETER_BYTES = 68 * _MIB
_MODEL_BYTES = 8 * _MIB // 5
#: Page tables, sockets, stacks in the kernel: 1.7 to 2.7 MiB.
_KERNEL_BYTES = 3 * _MIB
#: Above base and budget 1.5 MiB were measured. A search for a plan in the process itself takes up to 7.5 MB
#: for a moment, and what of it is not here presses on pages of libraries.
_HOLES_BYTES = 3 * _MIB
#: Pages of libraries. 48 MiB come to be mapped and the kernel may drop all; with 33 MB of them answers
#: came as fast as with all, with less than 30 they wait for the disk.
_LIBRARY_BYTES = 32 * _MIB
#: gRPC: 4 MB, and 7 MB of pages of its library.
_GRPC_BYTES = 12 * _MIB


def process_bytes(models: int, *, grpc: bool = False) -> int:
    """Return what a process that serves so many models takes beside the budget, from above."""
    own = _INTERPRETER_BYTES + _KERNEL_BYTES + _HOLES_BYTES + _LIBRARY_BYTES
    return own + models * _MODEL_BYTES + (_GRPC_BYTES if grpc else 0)


def resolved_budget(settings: Settings, count: Callable[[], int]) -> int:
    """Return the budget: as it was given, or what ``memory`` leaves beside the process.

    ``count``: returns how many models are to be served.

    Raises:
        RefusedError: this machine, or its control group, has not as much memory, nothing would be left
            for models, or what the process takes is not known.
    """
    given = settings.budget if settings.memory is None else settings.memory
    assert given is not None  # the settings have one of them
    available, owner = machine_bytes()
    if available and given // mmap.PAGESIZE > available // mmap.PAGESIZE:  # as groups count it
        name = "budget" if settings.memory is None else "memory"
        raise RefusedError(f"{name}: {format_size(given)} are more than {owner}")
    if settings.memory is None:
        return given
    if settings.device != "cpu":
        raise RefusedError(
            f"memory: what a process takes with {settings.device} is its driver's; give --budget"
        )
    return budget_within(settings.memory, max(count(), 1), grpc=settings.grpc_port is not None)


def budget_within(memory_bytes: int, models: int, *, grpc: bool = False) -> int:
    """Return the budget that ``memory_bytes`` for all of the process leave; raises as above."""
    taken = process_bytes(models, grpc=grpc)
    if memory_bytes <= taken:
        raise RefusedError(
            f"memory: the process itself takes up to {format_least(taken)} with {models} "
            f"model{'s' * (models != 1)}, so {format_size(memory_bytes)} leave nothing for them"
        )
    return memory_bytes - taken
