"""Functions in a fork of this process: what they say, return and raise arrives here."""

import errno
import os
import signal

import pytest

from models.errors import CompileError
from models.forks import ForkError, Listener, in_fork

# The process of the tests has threads, which no function here uses.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def test_results_come_and_listeners_are_called_here() -> None:
    heard: list[tuple[object, ...]] = []

    def work(say: Listener, warn: Listener) -> int:
        say("step", 1)
        warn("odd")
        say("step", 2)
        return os.getpid()

    process = in_fork(
        work,
        lambda *words: heard.append((os.getpid(), *words)),
        lambda text: heard.append((text,)),
        meanwhile=lambda: heard.append((os.getpid(), "meanwhile")),
    )
    here = os.getpid()
    assert process != here
    assert heard == [(here, "meanwhile"), (here, "step", 1), ("odd",), (here, "step", 2)]


def test_an_error_comes_with_its_causes() -> None:
    def work() -> None:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as exc:
            raise CompileError("m.onnx: no space") from exc

    with pytest.raises(CompileError, match=r"m\.onnx: no space") as caught:
        in_fork(work)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.ENOSPC
    assert "in work" in "".join(caught.value.__notes__)


def test_an_error_that_cannot_be_sent_is_named() -> None:
    class LocalError(Exception):
        """No other process finds it."""

    def work() -> None:
        raise LocalError("why")

    with pytest.raises(ForkError, match="LocalError: why"):
        in_fork(work)


@pytest.mark.parametrize(
    ("code", "error"), [(signal.SIGKILL, MemoryError), (signal.SIGTERM, ForkError)]
)
def test_a_process_that_a_signal_ends_is_an_error(
    code: signal.Signals, error: type[Exception]
) -> None:
    with pytest.raises(error, match="ended"):
        in_fork(lambda: os.kill(os.getpid(), code))


def test_a_listener_that_raises_ends_the_process() -> None:
    processes: list[int] = []

    def refuse(process: int) -> None:
        processes.append(process)
        raise ValueError("enough")

    def work(say: Listener) -> None:
        say(os.getpid())
        signal.pause()

    with pytest.raises(ValueError, match="enough"):
        in_fork(work, refuse)
    with pytest.raises(ProcessLookupError):
        os.kill(processes[0], 0)
