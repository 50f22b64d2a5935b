"""Events that say that memory is scarce: from the service manager, or from the kernel.

systemd's protocol (its page "Memory Pressure Handling in systemd"): ``MEMORY_PRESSURE_WATCH`` is the path
of what to wait on, and ``MEMORY_PRESSURE_WRITE``, in Base64, what to write to it first. A regular file is
one of the kernel's pressure stall information (PSI): it reports by POLLPRI, and is not read. A FIFO or a
socket reports by bytes, which are read and mean nothing. ``/dev/null`` means that pressure is none of the
service's business. Without the variables it is the file of this process's own control group.
"""

import base64
import binascii
import contextlib
import errno
import logging
import os
import select
import socket
import stat
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Protocol

_log = logging.getLogger(__name__)

WATCH, WRITE = "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE"
_OFF = "/dev/null"
#: systemd's own values, in microseconds: so long, of so long, tasks have waited for memory.
_STALLED, _WINDOW = 200_000, 2_000_000
_TRIGGER = b"some %d %d\0" % (_STALLED, _WINDOW)
STALLED_PART = _STALLED / _WINDOW
_MEMBERSHIP = Path("/proc/self/cgroup")
#: Where version 2 of control groups is mounted, alone or beside version 1.
_MOUNTS = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")
_MACHINE = Path("/proc/pressure/memory")
_READ_BYTES, _MAX_READS = 4096, 16


class PressureError(Exception):
    """A signal of memory pressure cannot be used; the message says which, and why."""


class Loop(Protocol):
    """What an event loop has for it."""

    def add_reader(self, fd: int, callback: Callable[[], object]) -> object: ...
    def remove_reader(self, fd: int) -> object: ...


class PressureEvents:
    """Calls ``heard`` at each event of the open ``descriptor``, which it owns, inside ``with``.

    ``is_psi``: it reports by POLLPRI. ``name``: for logs and for the page.
    """

    def __init__(self, name: str, descriptor: int, *, is_psi: bool) -> None:
        self.name = name
        self._descriptor = descriptor
        self._is_psi = is_psi
        self._epoll: select.epoll | None = None
        #: Why it reports no more; empty: it does.
        self.lost = ""
        self._stop: Callable[[], object] = _nothing

    def begin(self, loop: Loop, heard: Callable[[], None]) -> None:
        """Call ``heard`` on ``loop`` at each event from now on.

        Raises:
            PressureError: the file is none that can be waited on.
        """
        descriptor = self._descriptor
        if self._is_psi:
            # Loops wait for bytes only. An epoll can be waited on for them, and waits for more itself.
            self._epoll = select.epoll()
            try:
                self._epoll.register(descriptor, select.EPOLLPRI)
            except OSError as exc:
                self.close()
                raise PressureError(
                    f"{self.name} cannot be waited on: {exc.strerror}; it is no file of pressure stall "
                    "information"
                ) from exc
            descriptor = self._epoll.fileno()

        def readable() -> None:
            if self._drained():
                heard()

        loop.add_reader(descriptor, readable)
        self._stop = partial(loop.remove_reader, descriptor)

    def _drained(self) -> bool:
        """Take what has been reported, so that it is not reported again; return whether it is an event."""
        if self._epoll is not None:
            events = self._epoll.poll(0)
            if any(event & select.EPOLLERR for _, event in events):
                self._lose("its control group is gone")
                return False
            # None may be left: the loop's own look at the epoll has taken it.
            return True
        is_event = False
        try:
            for _ in range(_MAX_READS):  # the loop calls again where more is there
                if not os.read(self._descriptor, _READ_BYTES):
                    break
                is_event = True
            else:
                return is_event
        except BlockingIOError:
            return is_event
        except OSError as exc:
            self._lose(exc.strerror or str(exc))
            return is_event
        self._lose("its other end was closed")
        return is_event

    def stalled_seconds(self) -> float | None:
        """Return how long tasks have waited for memory in all; None: it is unknown."""
        if not self._is_psi or self.lost:
            return None
        try:
            some, *_ = Path(self.name).read_text(encoding="ascii").splitlines()
            return int(some.split("total=")[1]) / 1e6
        except (OSError, ValueError, IndexError):
            return None

    def _lose(self, reason: str) -> None:
        _log.warning("memory pressure: no more events from %s: %s", self.name, reason)
        self.lost = reason
        self._stop()
        self._stop = _nothing

    def close(self) -> None:
        """Wait no longer; it may be called again."""
        self._stop()
        self._stop = _nothing
        if self._epoll is not None:
            self._epoll.close()
            self._epoll = None
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def open_events(
    environ: Mapping[str, str],
    membership: Path = _MEMBERSHIP,
    mounts: tuple[Path, ...] = _MOUNTS,
    machine: Path = _MACHINE,
) -> PressureEvents | None:
    """Return what reports events: what the service manager names, else the kernel; None: nothing does.

    Raises:
        PressureError: the service manager names what cannot be used.
    """
    if WATCH in environ:
        return None if is_off(environ) else _named(environ)
    for path in _group_files(membership, mounts, machine):
        with contextlib.suppress(OSError):
            return _opened(path, _TRIGGER)
    return None


def is_off(environ: Mapping[str, str]) -> bool:
    """Return whether the service manager asks the service not to care about memory pressure."""
    return environ.get(WATCH) == _OFF


def _named(environ: Mapping[str, str]) -> PressureEvents:
    path = Path(environ[WATCH])
    try:
        if not path.is_absolute():
            raise OSError(errno.EINVAL, "it is no absolute path")
        written = base64.b64decode(environ.get(WRITE, ""), validate=True)
        return _opened(path, written)
    except binascii.Error as exc:
        raise PressureError(f"{WRITE} is not Base64: {exc}") from exc
    except OSError as exc:
        raise PressureError(f"{WATCH}={path}: {exc.strerror}") from exc


def _opened(path: Path, written: bytes) -> PressureEvents:
    """Open ``path`` and write to it, if there is anything to write; raises OSError."""
    mode = path.stat().st_mode
    if stat.S_ISSOCK(mode):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
            connected.setblocking(False)
            connected.connect(str(path))
            descriptor = os.dup(connected.fileno())
    elif stat.S_ISREG(mode) or stat.S_ISFIFO(mode):
        # A FIFO that is read only ends with its first writer; one that is written, too, never does.
        access = os.O_RDWR if written or _is_writable_fifo(path, mode) else os.O_RDONLY
        descriptor = os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    else:
        raise OSError(errno.EINVAL, "it is no file, no FIFO and no socket")
    try:
        if written and os.write(descriptor, written) != len(written):
            raise OSError(errno.EIO, "it takes less than what is to be written")
    except BaseException:
        os.close(descriptor)
        raise
    return PressureEvents(str(path), descriptor, is_psi=stat.S_ISREG(mode))


def _is_writable_fifo(path: Path, mode: int) -> bool:
    return stat.S_ISFIFO(mode) and os.access(path, os.W_OK)


def _group_files(membership: Path, mounts: tuple[Path, ...], machine: Path) -> list[Path]:
    """Return the files of PSI of this process's group; of the one that has all, the ``machine``'s, too."""
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    groups = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    files = [
        mount / PurePosixPath(group) / "memory.pressure" for group in groups for mount in mounts
    ]
    return [*(file for file in files if file.exists()), *([machine] if "" in groups else [])]


def _nothing() -> None:
    """Do nothing."""
