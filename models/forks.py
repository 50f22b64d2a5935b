"""A function in a process of its own, a fork of this one, whose memory is the system's again when it ends.

What this process has imported takes no memory twice there, nor time. Only a process that is ours is forked
(``is_claimed``), before ONNX Runtime starts threads in it: a fork has none of them.
"""

import itertools
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from models.processes import end_with
from models.runtime.heap import collect

#: What is done with what a function says meanwhile, here or in the process that waits for a fork.
Listener = Callable[..., object]
Result = TypeVar("Result")


class ForkError(RuntimeError):
    """The process has ended without an answer."""


def in_fork(
    work: Callable[..., Result], *listeners: Listener, meanwhile: Callable[[], object] | None = None
) -> Result:
    """Return what ``work(*listeners)`` returns, called in a fork of this process.

    A listener that is called there is called here, after ``meanwhile``. Arguments, the result and errors
    are pickled.

    Raises:
        MemoryError: the system ended the process, as it does for want of memory. ForkError: it ended
            otherwise. OSError: the system allows no more processes. Whatever ``work``, ``meanwhile`` and
            a listener raise.
    """
    collect()  # pages that are not there are not copied
    context = get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(os.getpid(), here, there, work, len(listeners)))
    with here:
        with there:
            process.start()
        try:
            if meanwhile is not None:
                meanwhile()
            return _hear(here, process, listeners)  # type: ignore[no-any-return]
        finally:
            process.kill()
            process.join()


def _hear(pipe: Connection, process: BaseProcess, listeners: tuple[Listener, ...]) -> Any:
    while True:
        try:
            which, content = pipe.recv()
        except EOFError as exc:
            process.join()
            if process.exitcode == -signal.SIGKILL:
                raise MemoryError("the system ended the process") from exc
            raise ForkError(f"a process has ended with status {process.exitcode}") from exc
        if which == "result":
            return content
        if which == "errors":
            raise _linked(content)
        listeners[which](*content)


def _run(
    parent: int, other_end: Connection, pipe: Connection, work: Callable[..., object], count: int
) -> None:
    """Call ``work`` for the process ``parent``, and end when it does."""
    other_end.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it, too, and ends this one
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with(parent)

    def saying(which: int) -> Listener:
        return lambda *arguments: pipe.send((which, arguments))

    try:
        message = ("result", work(*map(saying, range(count))))
    except Exception as exc:  # noqa: BLE001  it goes on in the process that waits
        message = ("errors", _causes(exc))
    pipe.send(message)


def _causes(exc: BaseException) -> list[BaseException]:
    """Return ``exc``, its cause, the cause of that, and so on, as they can be sent."""
    exc.add_note("".join(traceback.format_exception(exc)))
    causes = []
    cause: BaseException | None = exc
    while cause is not None:
        causes.append(_sendable(cause))
        cause = cause.__cause__
    return causes


def _sendable(exc: BaseException) -> BaseException:
    with suppress(Exception):
        pickle.loads(pickle.dumps(exc))  # noqa: S301  our own
        return exc
    return ForkError("".join(traceback.format_exception_only(exc)).strip())


def _linked(causes: list[BaseException]) -> BaseException:
    for exc, cause in itertools.pairwise(causes):
        exc.__cause__ = cause
    return causes[0]
