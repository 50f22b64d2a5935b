"""Lines for an output that is not read: no writer waits, order stays, dropped ones are counted."""

import contextlib
import errno
import io
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.operation import line_queue, logs
from server.operation.line_queue import LineOutput, LineQueue, LineStream, output_of
from tests.examples import over
from tests.server.support import LIMIT_SECONDS


class Sink:
    """An output in memory: takes ``capacity`` bytes, then blocks until there is more; may fail."""

    def __init__(self, capacity: int = 0) -> None:
        self.written = b""
        self.error: OSError | None = None
        self._capacity = capacity
        self._changed = threading.Condition()

    def output(self, *, immediate: bool = True) -> LineOutput:
        return LineOutput(-1, self.immediate if immediate else None, self.patient)

    def give(self, capacity: int) -> None:
        with self._changed:
            self._capacity += capacity
            self._changed.notify_all()

    def immediate(self, data: memoryview) -> int:
        with self._changed:
            if self.error is not None:
                raise self.error
            if not self._capacity:
                raise BlockingIOError(errno.EAGAIN, "full")
            written = bytes(data[: self._capacity])
            self.written += written
            self._capacity -= len(written)
            return len(written)

    def patient(self, data: memoryview) -> int:
        with self._changed:
            assert self._changed.wait_for(lambda: self._capacity or self.error, LIMIT_SECONDS)
            return self.immediate(data)

    @property
    def lines(self) -> list[str]:
        return self.written.decode().splitlines()


def dropped_notice(lines: int) -> str:
    return f"{lines} log lines were dropped\n"


PLENTY = 1 << 30


@over("immediate", [True, False])
def test_an_output_that_blocks_gets_what_fits_in_order_and_then_a_count_of_dropped_lines(
    immediate: bool,
) -> None:
    sink = Sink(100 if immediate else 0)
    queue = LineQueue(sink.output(immediate=immediate), dropped_notice, 4096)
    for index in range(2000):
        queue.put(b"line %d\n" % index)
    assert queue._waiting_bytes <= 4096
    assert queue.dropped > 0
    sink.give(PLENTY)
    assert queue.flush(LIMIT_SECONDS)
    *lines, notice = sink.lines
    assert lines == [f"line {index}" for index in range(len(lines))]
    assert notice == dropped_notice(2000 - len(lines)).strip()
    assert queue.dropped == 2000 - len(lines)
    queue.put(b"it flows\n")
    assert queue.flush(LIMIT_SECONDS)
    assert sink.lines[-1] == "it flows"


@given(
    acts=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(1, 5)),
            st.tuples(st.just("give"), st.integers(1, 200)),
            st.tuples(st.just("fail"), st.booleans()),
            st.tuples(st.just("flush"), st.just(0)),
        ),
        max_size=80,
    ),
    immediate=st.booleans(),
    limit=st.integers(20, 200),
)
def test_each_line_is_written_once_in_order_or_reported_where_it_is_missing(
    acts: list[tuple[str, int]], immediate: bool, limit: int
) -> None:
    """However an output blocks, flows and fails: between two lines a notice has the index missing."""
    sink = Sink()
    queue = LineQueue(sink.output(immediate=immediate), dropped_notice, limit)
    count = 0
    for what, value in acts:
        if what == "put":
            lines = "".join(f"line {index}\n" for index in range(count, count + value))
            queue.put(lines.encode())
            count += value
        elif what == "give":
            sink.give(value)
        elif what == "fail":
            with sink._changed:
                sink.error = OSError(errno.ENOSPC, "full") if value else None
                sink._changed.notify_all()
        else:
            queue.flush(0.0)
        assert queue._waiting_bytes <= limit + 2 * len(dropped_notice(count))
    with sink._changed:
        sink.error = None
    sink.give(PLENTY)
    assert queue.flush(LIMIT_SECONDS)
    queue.put(b"line %d\n" % count)
    assert queue.flush(LIMIT_SECONDS)
    missing, following = 0, 0
    # A line whose rest could not be written has an end all the same, where another begins.
    for text in re.findall(r"line \d+\n|\d+ log lines were dropped\n", sink.written.decode()):
        if text.startswith("line"):
            index = int(text.split()[1])
            assert index - following <= missing
            assert index >= following
            missing, following = 0, index + 1
        else:
            missing += int(text.split()[0])
    assert following == count + 1
    assert queue.dropped >= 0


def test_concurrent_threads_keep_their_order_and_lose_nothing() -> None:
    sink = Sink(PLENTY)
    stream = LineStream(LineQueue(sink.output(), dropped_notice), 2)

    def write(thread: int) -> None:
        for index in range(200):
            print(thread, index, file=stream)

    threads = [threading.Thread(target=write, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pairs = [tuple(map(int, line.split())) for line in sink.lines]
    assert sorted(pairs) == [(of, index) for of in range(4) for index in range(200)]
    for writer in range(4):
        indices = [index for of, index in pairs if of == writer]
        assert all(before < after for before, after in pairwise(indices))


def test_a_line_goes_when_it_ends_or_is_flushed() -> None:
    sink = Sink(PLENTY)
    stream = LineStream(LineQueue(sink.output(), dropped_notice), 2)
    assert stream.write("begun") == 5
    assert sink.written == b""
    stream.write(", ended\nthe next")
    assert sink.written == b"begun, ended\n"
    stream.flush()
    stream.write("\N{LATIN SMALL LETTER E WITH ACUTE}\udc80\n")
    assert sink.lines == ["begun, ended", "the next\N{LATIN SMALL LETTER E WITH ACUTE}\\udc80"]
    stream.write("x" * 200_000)
    assert len(sink.written) > 200_000, "a line without an end takes no memory for ever"


def test_a_handler_of_a_signal_may_write_while_its_thread_does() -> None:
    """At any moment of a write: nothing waits for a lock that its own thread has."""
    sink, signalled = Sink(PLENTY), list[int]()
    queue = LineQueue(sink.output(), dropped_notice)

    def handle(index: int, frame: FrameType | None) -> None:
        signalled.append(index)
        queue.put(b"signal\n")

    class Interrupting(Sink):
        def immediate(self, data: memoryview) -> int:
            if len(signalled) < 3:
                signal.raise_signal(signal.SIGUSR1)
            return sink.immediate(data)

        def patient(self, data: memoryview) -> int:
            return sink.immediate(data)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        queue.output = Interrupting().output()
        queue.put(b"line\n")
        assert queue.flush(LIMIT_SECONDS)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert sorted(sink.lines) == ["line", *["signal"] * len(signalled)]
    assert sink.lines[0] == "line"


def test_where_there_is_no_thread_lines_wait_for_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sink = Sink()
    queue = LineQueue(sink.output(), dropped_notice)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        queue.put(b"first\n")
    sink.give(PLENTY)
    queue.put(b"second\n")
    assert queue.flush(LIMIT_SECONDS)
    assert sink.lines == ["first", "second"]


def test_the_end_waits_no_longer_than_it_may() -> None:
    sink = Sink()
    queue = LineQueue(sink.output(), dropped_notice)
    queue.put(b"stalled\n")
    assert not queue.flush(0.0)
    sink.give(PLENTY)
    assert queue.flush(LIMIT_SECONDS)


# Outputs of the system.


@contextlib.contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """Yield both ends of a pipe that takes nothing more."""
    reads, writes = os.pipe()
    try:
        os.set_blocking(writes, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writes, bytes(4096))
        os.set_blocking(writes, True)
        yield reads, writes
    finally:
        os.close(reads)
        os.close(writes)


@contextlib.contextmanager
def full_socket() -> Iterator[tuple[int, int]]:
    """Yield both ends of a socket that takes nothing more, as journald's."""
    reads, writes = socket.socketpair()
    with reads, writes:
        writes.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                writes.send(bytes(4096))
        writes.setblocking(True)
        yield reads.fileno(), writes.fileno()


def drained(reads: int, until: bytes) -> bytes:
    """Return what comes, up to ``until``."""
    got = b""
    while not got.endswith(until):
        got += os.read(reads, 1 << 16)
    return got.lstrip(b"\0")


@over("full", [full_pipe, full_socket])
@over("again", [True, False])
def test_no_write_waits_for_a_reader(
    full: Callable[[], contextlib.AbstractContextManager[tuple[int, int]]], again: bool
) -> None:
    """Also of a pipe that is another user's, so that this process may not open it once more."""
    with full() as (reads, writes), pytest.MonkeyPatch.context() as patch:
        if not again:
            patch.setattr(line_queue, "_reopened", lambda descriptor: None)
        shared = os.dup(writes)  # as another process has it
        queue = LineQueue(output_of(writes), dropped_notice)
        for index in range(2000):
            queue.put(b"%-199d\n" % index)
        assert queue.dropped
        assert os.get_blocking(shared), "others' writes wait as before"
        os.close(shared)
        notice = dropped_notice(queue.dropped)
        lines = drained(reads, notice.encode()).decode().splitlines()
        assert [*map(int, lines[:-1])] == [*range(len(lines) - 1)]
        assert len(lines) - 1 + queue.dropped == 2000
        queue.put(b"it flows\n")
        assert drained(reads, b"flows\n") == b"it flows\n"


def test_what_c_libraries_write_to_a_full_pipe_does_not_wait_either() -> None:
    with full_pipe() as (_, writes):
        output_of(writes)
        with pytest.raises(BlockingIOError):
            os.write(writes, b"of a library\n")


def test_a_pipe_that_is_closed_and_a_disk_that_is_full_are_no_failure() -> None:
    reads, closed = os.pipe()
    descriptors = closed, os.open("/dev/full", os.O_WRONLY)
    queues = [LineQueue(output_of(descriptor), dropped_notice) for descriptor in descriptors]
    os.close(reads)
    for queue, descriptor in zip(queues, descriptors, strict=True):
        for index in range(1000):
            queue.put(b"line %d\n" % index)
        assert queue.flush(LIMIT_SECONDS)
        assert queue.dropped == 1000
        os.close(descriptor)
        queue.put(b"to a descriptor that is closed\n")
        assert queue.dropped == 1001


def test_a_file_has_each_line_before_its_writer_goes_on(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        queue = LineQueue(output_of(file.fileno()), dropped_notice)
        for index in range(10):
            queue.put(b"%d\n" % index)
            assert (tmp_path / "log").read_bytes().endswith(b"%d\n" % index)
        assert queue._thread is None


def test_a_remote_file_is_written_by_a_thread(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    with (tmp_path / "log").open("wb") as file:
        device = os.fstat(file.fileno()).st_dev
        index = f"{os.major(device)}:{os.minor(device)}"
        for kind, remote in (("ext4", False), ("nfs4", True), ("fuse.sshfs", True)):
            mounts.write_text(
                f"1 0 0:0 / /proc rw - proc proc rw\n2 0 {index} / / rw - {kind} what rw\n"
            )
            assert line_queue._is_remote(file.fileno(), mounts) is remote
        assert not line_queue._is_remote(file.fileno(), tmp_path / "none")


# The streams of a process.

ROOT = Path(__file__).parents[3]

_PROCESS = """
import ctypes, faulthandler, logging, os, sys, threading, time, warnings
from server.operation import logs
from server.operation.line_queue import dropped_lines, never_wait
never_wait()
logs.configure({log_format!r})
log = logging.getLogger("x")
"""


def ran(code: str, log_format: str = "text", **streams: object) -> "subprocess.Popen[bytes]":
    text = _PROCESS.format(log_format=log_format) + code
    command = [sys.executable, "-c", text]
    return subprocess.Popen(command, cwd=ROOT, **streams)  # type: ignore[call-overload, no-any-return]


def test_every_writer_of_a_process_goes_on_while_its_pipes_are_not_read() -> None:
    """Log, prints, warnings, tracebacks of threads, a C library; and it ends, in time."""
    with full_pipe() as (_, errors), full_pipe() as (_, prints):
        reads, answers = os.pipe()
        process = ran(
            f"""
sys.modules["server.operation.line_queue"].FLUSH_SECONDS = 0.01
for index in range(500):
    log.info("line %d %s", index, "x" * 500)
    print("printed", index, "x" * 1000, flush=True)
    warnings.warn(f"warning {{index}}")
    sys.stderr.write("written\\n")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
ctypes.CDLL(None).puts(b"by a library")
ctypes.CDLL(None).fflush(None)
ctypes.CDLL(None).perror(b"by a library")
os.write({answers}, b"%d" % dropped_lines())
raise ValueError("a traceback at the end")
""",
            stdout=prints,
            stderr=errors,
            pass_fds=[answers],
        )
        os.close(answers)
        with os.fdopen(reads, "rb") as file:
            assert int(file.read()) > 100
        assert process.wait(LIMIT_SECONDS) == 1


@pytest.mark.parametrize("end", ["os._exit(3)", "os.abort()", "ctypes.string_at(0)", "1 / 0"])
def test_a_crash_loses_no_line_while_the_output_flows(end: str) -> None:
    process = ran(
        "for index in range(50):\n    log.info('line %d', index)\n" + end, stderr=subprocess.PIPE
    )
    _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode
    indices = re.findall(r" line (\d+)$", errors.decode(), re.MULTILINE)
    assert [*map(int, indices)] == [*range(50)]
    assert (b"ZeroDivisionError" in errors) is (end == "1 / 0")


@over(
    "log_format, pattern",
    [("text", r"warning: (\d+) log lines"), ("json", r'"message": "(\d+) log lines')],
)
def test_when_it_flows_again_a_line_of_the_log_says_how_many_are_missing(
    log_format: str, pattern: str
) -> None:
    with full_pipe() as (reads, errors):
        answers, writes_answer = os.pipe()
        process = ran(
            f"""
for index in range(2000):
    log.info("%s line %d", "x" * 200, index)
os.write({writes_answer}, b"%d" % dropped_lines())
assert sys.stdin.read() == ""
log.info("last")
""",
            log_format,
            stderr=errors,
            stdin=subprocess.PIPE,
            pass_fds=[writes_answer],
        )
        dropped = int(os.read(answers, 100))
        first = drained(reads, b"}\n" if log_format == "json" else b"dropped\n").decode()
        while not re.search(pattern, first):
            first += os.read(reads, 1 << 16).decode()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(LIMIT_SECONDS) == 0
        text = first + os.read(reads, 1 << 16).decode()
        os.close(answers)
        os.close(writes_answer)
    matches = re.findall(pattern, text)
    assert [int(index) for index in matches] == [dropped]
    indices = [int(index) for index in re.findall(r"line (\d+)", text)]
    assert indices == list(range(2000 - dropped))
    assert "last" in text.splitlines()[-1]


def test_both_streams_of_one_pipe_keep_their_order() -> None:
    process = ran(
        "for index in range(200):\n    print(index, file=(sys.stdout, sys.stderr)[index % 2])",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert output.split() == [b"%d" % index for index in range(200)]


def test_a_forked_process_writes_only_new_lines() -> None:
    process = ran(
        """
sys.stderr.queue._append(sys.modules["server.operation.line_queue"]._Piece(memoryview(b"before\\n"), 1))
if (child := os.fork()) == 0:
    print("child", file=sys.stderr)
    os._exit(0)
os.waitpid(child, 0)
print("parent", file=sys.stderr)
""",
        stderr=subprocess.PIPE,
    )
    _, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert errors.split() == [b"child", b"before", b"parent"]


def test_a_process_that_was_started_without_standard_error_writes_to_no_other_file() -> None:
    """The stream that stands for it owns descriptor 2, which the next file would get."""
    code = """
os.close(2)
sys.__stderr__ = sys.stderr = None
sys.stderr = open(os.devnull, "w")
assert sys.stderr.fileno() == 2
"""
    text = _PROCESS.format(log_format="text")
    start, _, rest = text.partition("never_wait()")
    script = (
        f"{start}{code}never_wait(){rest}"
        + """
reads, writes = os.pipe()
assert min(reads, writes) > 2
log.info("line")
assert dropped_lines() == 0
os.set_blocking(reads, False)
try:
    os._exit(len(os.read(reads, 100)))
except BlockingIOError:
    os._exit(7)
"""
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, timeout=LIMIT_SECONDS, check=False)
    assert done.returncode == 7


def test_streams_that_lead_elsewhere_stay(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    line_queue.never_wait()
    assert (sys.stdout, sys.stderr) == before
    assert line_queue.dropped_lines() == 0


def test_a_notice_belongs_to_no_request() -> None:
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logs.JsonFormatter())
    token = logs.request_id.set("r1")
    try:
        assert '"message": "1 log line was dropped"' in (text := logs._notice(handler, 1))
        assert "r1" not in text
        assert text.endswith("}\n")
    finally:
        logs.request_id.reset(token)
