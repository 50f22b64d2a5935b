"""The reader in C: found, checked, and its functions and structures declared.

Where it cannot be used, the reason is one line, and Python reads.
"""

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path

from loader.native.building import BUILT, file_name, sources_digest
from loader.native.compiling import LibraryError, check_machine, missing

_INT, _DOUBLE, _POINTER = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p
_FLAG = ctypes.c_int


class SegmentStruct(ctypes.Structure):
    """`struct segment`: bytes of a file that follow each other, and where they go."""

    _fields_ = (("offset", _INT), ("length", _INT), ("target", _POINTER))


class ReadStruct(ctypes.Structure):
    """`struct read`: segments [first_segment, end_segment), once ``free_after`` launches have ended."""

    _fields_ = (
        ("n_bytes", _INT),
        ("free_after", _INT),
        ("first_segment", _INT),
        ("end_segment", _INT),
    )


class JobStruct(ctypes.Structure):
    """`struct job`."""

    _fields_ = (("id", _INT), ("n_bytes", _INT), ("deadline", _DOUBLE), ("urgency", _INT))


class FiguresStruct(ctypes.Structure):
    """`struct figures`."""

    _fields_ = (
        *(("n_bytes", _INT), ("reads", _INT), ("failures", _INT)),
        *(("seconds", _DOUBLE), ("cpu_seconds", _DOUBLE)),
    )


class ClientStruct(ctypes.Structure):
    """What Python sees of `struct client`."""

    _fields_ = (
        *(("arrived", _INT), ("launched", _INT), ("wanted", _INT), ("figures", FiguresStruct)),
        *(("waiting", _INT), ("in_flight", _INT), ("hung", _INT), ("failed_read", _INT)),
    )


@dataclass(eq=False)
class NativeClient:
    """One engine's line of reads in C, at ``address``; 0: it has gone."""

    name: str
    address: int

    @property
    def struct(self) -> ClientStruct:
        return ClientStruct.from_address(self.address)


class FlightStruct(ctypes.Structure):
    """What Python sees of `struct flight`."""

    _fields_ = (
        *(("client", _POINTER), ("job", _INT), ("read", _INT), ("index", _INT)),
        *(("n_bytes", _INT), ("verify", _INT), ("started", _DOUBLE)),
    )


Counts = _INT * 3

#: What a wait for reads ends with.
ARRIVED, HAS_FAILED, TIMED_OUT, IS_CLOSED = range(4)
#: Of one read.
IN_FLIGHT, DONE = 1, 2

_FUNCTIONS = {
    "reads_sources": (ctypes.c_char_p,),
    "pool_open": (_POINTER, _INT, _DOUBLE, _INT, _INT, _INT),
    "pool_free": (None, _POINTER),
    "pool_client": (_POINTER, _POINTER, _INT),
    "pool_forget": (_FLAG, _POINTER, _POINTER),
    "pool_submit": (_FLAG, _POINTER, _POINTER, _POINTER, _FLAG),
    "pool_take_back": (_INT, _POINTER),
    "pool_hurry": (None, _POINTER, _POINTER),
    "pool_thread": (_POINTER, _POINTER),
    "pool_work": (_FLAG, _POINTER, _POINTER),
    "pool_ended": (None, _POINTER, _POINTER, _FLAG, _DOUBLE),
    "pool_watch": (_POINTER, _POINTER),
    "pool_may_replace": (_FLAG, _POINTER),
    "pool_replace": (None, _POINTER, _POINTER),
    "pool_close": (None, _POINTER, _DOUBLE),
    "pool_end": (None, _POINTER),
    "pool_count": (None, _POINTER, _POINTER, _POINTER),
    "stream_open": (_FLAG, _POINTER, _POINTER, _POINTER, _POINTER, _INT, _INT, _FLAG, _FLAG),
    "stream_states": (_POINTER, _POINTER),
    "stream_ends": (_POINTER, _POINTER),
    "stream_begin": (_INT, _POINTER, _POINTER, _DOUBLE, _FLAG),
    "stream_launched": (None, _POINTER),
    "stream_wait": (_FLAG, _POINTER, _POINTER, _INT, _DOUBLE),
    "stream_stop": (None, _POINTER, _POINTER),
    "stream_settle": (_INT, _POINTER, _POINTER, _DOUBLE),
}
#: These sleep, or may be called while they do: without Python's lock. The others return at once.
_SLEEPING = ("pool_work", "pool_watch", "pool_close", "stream_wait", "stream_settle")


class ReaderLibrary:
    """The functions of the library in the file ``path``.

    Raises:
        LibraryError: it is not for this machine, or not made of this source.
    """

    def __init__(self, path: Path) -> None:
        check_machine(path)
        self.path = path
        try:
            keeping, releasing = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))
            for name, (result, *arguments) in _FUNCTIONS.items():
                function = getattr(releasing if name in _SLEEPING else keeping, name)
                function.restype, function.argtypes = result, arguments
                setattr(self, name, function)
            sources = keeping.reads_sources().decode("ascii", "replace")
        except (OSError, AttributeError) as exc:
            raise LibraryError(f"{path.name} cannot be loaded: {str(exc)[:200]}") from exc
        if sources != sources_digest():
            raise LibraryError(f"{path.name} was made of other sources")

    def __getattr__(self, name: str) -> "ctypes._NamedFuncPointer":
        raise AttributeError(name)  # all functions are set above


@functools.cache
def find_reader(folder: Path = BUILT) -> ReaderLibrary | LibraryError:
    """Return the library of this installation, or why there is none that can be used."""
    path = folder / file_name()
    if not path.exists():
        return missing(folder, "reads")
    try:
        return ReaderLibrary(path)
    except LibraryError as exc:
        return exc
