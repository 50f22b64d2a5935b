"""Standard error and standard output of the service: a write there never waits.

A pipe that is not read, a terminal that was stopped and a journal that hangs take nothing, for as long as
they like; the thread that writes, which may be the event loop's, would wait for them. So a line is written
immediately where that takes no time, in the order of writers and before its writer goes on: a crash loses
nothing that was written while the output flowed. Where it does not, lines wait in a queue for a thread of
its own. When the queue is full they are dropped, and counted; when it flows again a line says how many.

Invariant: no lock is held and no writer is kept while the output may block. An output that cannot be
written (closed, on a full disk) is one whose lines are dropped.
"""

import atexit
import contextlib
import errno
import io
import os
import select
import socket
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TextIO, cast

#: What may wait for an output; of a full queue, half must have gone before it takes lines again.
LIMIT_BYTES = 256 << 10
#: How long the end of the process waits for lines that wait.
FLUSH_SECONDS = 1.0
#: A line without an end is written in parts of so many characters.
_MAX_PARTIAL = 64 << 10

# Outputs: how to write without a wait.

#: Writes what can be written now, and returns how many bytes; BlockingIOError: nothing can be.
Write = Callable[[memoryview], int]
_REMOTE = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs", "virtiofs"})


class LineOutput(NamedTuple):
    """A descriptor. ``immediate``: never waits; None: nothing does. ``patient``: may wait for ever."""

    descriptor: int
    immediate: Write | None
    patient: Write


def output_of(descriptor: int) -> LineOutput:
    """Return how to write to ``descriptor``.

    Its open file may be shared with other processes, whose writes must not fail because ours must not
    wait. So a pipe and a terminal are opened once more; ``descriptor`` then leads there, and what C
    libraries write to it does not wait either, but is lost where the pipe is full.

    Raises:
        OSError: it is not open.
    """
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(mode):
        return _waited_for(descriptor, _sending(descriptor))
    if not os.get_blocking(descriptor):
        return _waited_for(descriptor, _writing(descriptor))
    if stat.S_ISFIFO(mode) or os.isatty(descriptor):
        return _reopened(descriptor) or _of_pipe(descriptor)
    write = _writing(descriptor)
    return LineOutput(descriptor, None if _is_remote(descriptor) else write, write)


def _writing(descriptor: int) -> Write:
    return lambda data: os.write(descriptor, data)


def _sending(descriptor: int) -> Write:
    sock = socket.socket(fileno=os.dup(descriptor))
    return lambda data: sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def _waited_for(descriptor: int, immediate: Write) -> LineOutput:
    """Return the output that ``immediate`` writes; it is polled until it has capacity."""
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)

    def patient(data: memoryview) -> int:
        while True:
            with contextlib.suppress(BlockingIOError):
                return immediate(data)
            poller.poll()

    return LineOutput(descriptor, immediate, patient)


def _reopened(descriptor: int) -> LineOutput | None:
    """Return the pipe or terminal of ``descriptor`` with an open file of its own, or None."""
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        reopened = os.open(f"/proc/self/fd/{descriptor}", flags)
    except OSError:  # no access: it is another user's
        return None
    try:
        before, now = os.fstat(descriptor), os.fstat(reopened)
        is_same = (before.st_dev, before.st_ino) == (now.st_dev, now.st_ino)
        if is_same:
            os.dup2(reopened, descriptor)
    finally:
        os.close(reopened)
    return _waited_for(descriptor, _writing(descriptor)) if is_same else None


def _of_pipe(descriptor: int) -> LineOutput:
    """Return a pipe or terminal that cannot be opened again: Linux writes to some pipes without a wait."""

    def immediate(data: memoryview) -> int:
        try:
            return os.pwritev(descriptor, [data], -1, os.RWF_NOWAIT)
        except OSError as exc:
            if exc.errno in {errno.EOPNOTSUPP, errno.ESPIPE, errno.EINVAL, errno.ENOSYS}:
                raise BlockingIOError(errno.EAGAIN, "it may wait") from exc
            raise

    return LineOutput(descriptor, immediate, _writing(descriptor))


def _is_remote(descriptor: int, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Return whether a file lies where a write may hang as long as a network does."""
    device = os.fstat(descriptor).st_dev
    device_id = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return False
    kinds = (line.partition(" - ")[2].split()[0] for line in lines if line.split()[2] == device_id)
    return any(kind in _REMOTE or kind.startswith("fuse") for kind in kinds)


# The queue before one output.


class _Piece(NamedTuple):
    """Lines that wait. ``lines``: how many; of a notice, how many dropped ones it reports."""

    data: memoryview
    lines: int
    is_notice: bool = False


def _plain(lines: int) -> str:
    return f"{lines} lines were dropped\n"


class LineQueue:
    """Takes lines for ``output`` from any thread, and from handlers of signals; never makes them wait.

    At most ``limit_bytes`` wait. ``notice``: returns the line that says how many were dropped.
    """

    def __init__(
        self,
        output: LineOutput,
        notice: Callable[[int], str] = _plain,
        limit_bytes: int = LIMIT_BYTES,
    ) -> None:
        self.output = output
        self.notice = notice
        #: Lines that were dropped since the start.
        self.dropped = 0
        self._limit_bytes = limit_bytes
        self._begin()

    def _begin(self) -> None:
        # A signal's handler may write while the thread that it interrupts holds the lock.
        self._lock = threading.RLock()
        self._filled = threading.Condition(self._lock)
        self._emptied = threading.Condition(self._lock)
        #: What waits; the thread takes the first out when it has been written.
        self._waiting: deque[_Piece] = deque()
        self._waiting_bytes = 0
        self._is_full = False
        self._is_writing = False
        #: Of those dropped, how many no notice has told of.
        self._untold = 0
        #: Of those before the first that waits, which the thread could not write.
        self._unwritten = 0
        self._thread: threading.Thread | None = None

    def put(self, data: bytes) -> None:
        """Write ``data``, whole lines, or have it wait, or drop it."""
        piece = _Piece(memoryview(data), max(data.count(b"\n"), 1))
        with self._lock:
            if self._waiting or self._is_writing or self.output.immediate is None:
                self._wait(piece)
                return
            self._is_writing = True
            try:
                for item in (*self._notices(), piece):
                    if self._untold:  # the notice before it could not be written
                        self._lose(item)
                    else:
                        self._write_now(item, self.output.immediate)
            finally:
                self._is_writing = False
            self._wake()

    def flush(self, seconds: float) -> bool:
        """Wait for at most ``seconds`` until nothing waits; return whether that is so."""
        with self._lock:
            return self._emptied.wait_for(lambda: not self._waiting, seconds)

    def restart(self) -> None:
        """Begin anew in a process that was forked: what waits is written by the one before."""
        self._begin()

    # With the lock held.

    def _write_now(self, piece: _Piece, immediate: Write) -> None:
        if self._waiting:
            self._wait(piece)
            return
        try:
            written = immediate(piece.data)
        except BlockingIOError:
            self._wait(piece)
        except OSError:
            self._lose(piece)
        else:
            if written < len(piece.data):
                rest = piece._replace(data=piece.data[written:])
                self._append(rest, first=True)  # a signal's handler may have written since

    def _wait(self, piece: _Piece) -> None:
        """Have ``piece`` wait, behind a notice of what was dropped before it; or drop it."""
        if self._is_full or self._waiting_bytes + len(piece.data) > self._limit_bytes:
            self._is_full = bool(self._waiting)
            self._lose(piece)
            return
        for item in (*self._notices(), piece):
            self._append(item)
        self._wake()

    def _append(self, piece: _Piece, *, first: bool = False) -> None:
        (self._waiting.appendleft if first else self._waiting.append)(piece)
        self._waiting_bytes += len(piece.data)

    def _lose(self, piece: _Piece) -> None:
        self._untold += piece.lines
        self.dropped += 0 if piece.is_notice else piece.lines

    def _notices(self) -> Iterator[_Piece]:
        """Yield a notice where lines were dropped of which there was none."""
        lines, self._untold = self._untold, 0
        if lines:
            yield self._notice(lines)

    def _notice(self, lines: int) -> _Piece:
        return _Piece(memoryview(self.notice(lines).encode()), lines, is_notice=True)

    def _wake(self) -> None:
        """Have the thread write what waits; where the system gives none, the next line tries again."""
        if not self._waiting:
            return
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="lines", daemon=True)
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread
        self._filled.notify()

    # The thread.

    def _work(self) -> None:
        while True:
            with self._lock:
                self._filled.wait_for(lambda: self._waiting)
                piece = self._waiting[0]
                lines, self._unwritten = self._unwritten, 0
            # Lines that could not be written are reported before the piece, or it is not written, either.
            has_notice = not lines or self._written(self._notice(lines).data)
            has_gone = has_notice and self._written(piece.data)
            with self._lock:
                self._unwritten = 0 if has_notice else lines
                self._finish(piece, has_gone)

    def _written(self, data: memoryview) -> bool:
        """Write all of ``data``, however long that takes; return whether it could be."""
        try:
            while data:
                data = data[self.output.patient(data) :]
        except Exception:  # noqa: BLE001  without this thread no line would go any more
            return False
        return True

    def _finish(self, piece: _Piece, has_gone: bool) -> None:
        self._waiting.popleft()
        self._waiting_bytes -= len(piece.data)
        if not has_gone:
            self._unwritten += piece.lines
            self.dropped += 0 if piece.is_notice else piece.lines
        if not self._waiting:
            self._untold += self._unwritten
            self._unwritten = 0
        self._is_full &= self._waiting_bytes > self._limit_bytes // 2
        if not self._waiting and has_gone:
            for notice in self._notices():  # it flows again, and maybe no other line comes
                self._append(notice)
        if not self._waiting:
            self._is_full = False
            self._emptied.notify_all()


# Streams of the process.


class LineStream(io.TextIOBase):
    """A text stream whose lines go to ``queue``, whole: those of several threads do not mix.

    ``descriptor``: where it says that it leads to.
    """

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self, queue: LineQueue, descriptor: int) -> None:
        self.queue = queue
        self._descriptor = descriptor
        #: The partial line of each thread.
        self._partial: dict[int, str] = {}

    def write(self, text: str, /) -> int:
        """Take ``text``; whole lines go on, the rest when its line ends."""
        thread = threading.get_ident()
        line = self._partial.pop(thread, "") + text
        end = len(line) if len(line) > _MAX_PARTIAL else line.rfind("\n") + 1
        if end < len(line):
            self._partial[thread] = line[end:]
        if end:
            self.queue.put(line[:end].encode(self.encoding, self.errors))
        return len(text)

    def flush(self) -> None:
        """Write the partial line of this thread, too; that never waits."""
        self._end(threading.get_ident())

    def end(self) -> None:
        """Write the partial lines of all threads."""
        for thread in list(self._partial):
            self._end(thread)

    def _end(self, thread: int) -> None:
        line = self._partial.pop(thread, "")
        if line:
            self.queue.put(line.encode(self.encoding, self.errors))

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor that lines go to."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether that is a terminal."""
        return os.isatty(self.fileno())


#: The streams that ``never_wait`` has put in place, by their descriptors.
_streams: dict[int, LineStream] = {}
#: The streams before those: one that is freed may close its descriptor, which another file would get.
_replaced: list[TextIO] = []


def never_wait() -> None:
    """Have nothing that this process writes to standard output or standard error wait from now on.

    Streams that lead elsewhere, as those of a caller that collects output, stay as they are. What waits
    when the process ends has a second to go.
    """
    is_first = not _streams
    sys.stderr = _stream(sys.stderr, 2, _plain)
    sys.stdout = _stream(sys.stdout, 1, lambda lines: f"# {_plain(lines)}")
    if is_first and _streams:
        atexit.register(flush_all)
        os.register_at_fork(after_in_child=_restart_all)


def _stream(stream: TextIO, descriptor: int, notice: Callable[[int], str]) -> TextIO:
    """Return a stream that never waits, where ``stream`` leads to ``descriptor``, else that one."""
    try:
        if isinstance(stream, LineStream) or stream.fileno() != descriptor:
            return stream
        stream.flush()
        queue = _shared_queue(descriptor) or LineQueue(output_of(descriptor), notice)
    except (OSError, ValueError, AttributeError):  # closed, or none
        return stream
    _replaced.append(stream)
    queued = _streams[descriptor] = LineStream(queue, descriptor)
    return cast(TextIO, queued)  # it has all of one that text needs


def _shared_queue(descriptor: int) -> LineQueue | None:
    """Return the queue of another stream that leads to the same file, so that lines stay in order."""
    here = os.fstat(descriptor)
    for other, stream in _streams.items():
        there = os.fstat(other)
        if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino):
            os.dup2(other, descriptor)
            return stream.queue
    return None


def dropped_lines() -> int:
    """Return how many lines this process has dropped so far."""
    return sum(queue.dropped for queue in {stream.queue for stream in _streams.values()})


def flush_all() -> None:
    """Give the lines that wait a second to go, of all streams together."""
    until = time.monotonic() + FLUSH_SECONDS
    for stream in list(_streams.values()):
        stream.end()
        stream.queue.flush(max(until - time.monotonic(), 0.0))


def _restart_all() -> None:
    for stream in _streams.values():
        stream.queue.restart()
