"""Long searches for plans, in processes of their own.

A search is pure Python and holds the interpreter's lock: on a busy machine a thread that holds it and waits
for a core would stop the event loop for that long. But a process takes memory beside the budget, so where
the limit of the service leaves no room for that, searches run on the calling thread. Tasks and results are
pickles, sent only between the server and its own process.
"""

import contextlib
import os
import pickle
import select
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pipeline.fitting.wanted import Fitted
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.program.program import Program
from pipeline.program.stopping import go_on, tell
from pipeline.schedule.architectures import Architecture
from server.memory.search import Search

_COMMAND = (sys.executable, "-m", "server.repository.apart")
_LENGTH_BYTES = 8
#: A search that is not wanted any more ends within so long.
_LOOK_MS = 50
_MEMORY_BYTES = 4 << 30
#: The memory of a process that searches for the plan of a large network; 60 to 150 MB were measured.
APART_BYTES = 192 << 20
_CPU_SECONDS = 1800

T = TypeVar("T")


class SearchApart(Search):
    """Searches on the calling thread where that is brief, else in a process that ``command`` runs.

    ``spare_bytes``: returns the memory that stays free even when the service holds all that it may.
    """

    def __init__(self, spare_bytes: Callable[[], int], command: Sequence[str] = _COMMAND) -> None:
        self._spare_bytes = spare_bytes
        self._command = tuple(command)

    def fully(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of ``function``; its progress is reported here as if it ran here.

        Raises:
            PlanningStoppedError: the plan is not wanted any more. PlanError: the process ended without a
                result. Otherwise the errors of ``function``.
        """
        result = self.briefly(function, *arguments)
        return self._apart(function, arguments, gives_way=True) if result is None else result

    def now(self, function: Callable[..., T], *arguments: Any) -> T:
        """Do as ``fully``, with the priority of the server."""
        result = self.briefly(function, *arguments)
        return self._apart(function, arguments, gives_way=False) if result is None else result

    def _apart(self, function: Callable[..., T], arguments: Sequence[Any], gives_way: bool) -> T:
        if self._spare_bytes() < APART_BYTES:
            return function(*arguments)
        task = _Task(function, tuple(arguments), os.getpid(), gives_way)
        message: Any = None
        with contextlib.closing(self._said(task)) as messages:
            for message in messages:
                if isinstance(message, _Progress):
                    tell(message.step, message.done, message.of)
        if isinstance(message, Exception):
            raise message
        if not isinstance(message, _Found):
            raise PlanError("the search for a plan ended without a word")
        for mine, theirs in zip(_known(arguments), message.known, strict=True):
            mine.take(theirs)
        return _whole(message.what, arguments)  # type: ignore[no-any-return]

    def _said(self, task: "_Task") -> Generator[Any]:
        """Yield the messages of a process that does ``task``; the process ends with this generator."""
        process = subprocess.Popen(  # noqa: S603  the server's own program
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert process.stdin is not None
        assert process.stdout is not None
        with process:
            try:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(pickle.dumps(task))
                    process.stdin.close()
                yield from _read(process.stdout.fileno())
            finally:
                process.kill()


@dataclass(frozen=True)
class _Task:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    server: int
    gives_way: bool


@dataclass(frozen=True)
class _Progress:
    step: str
    done: int
    of: int


@dataclass(frozen=True)
class _Found:
    """A result; ``known``: all plans found before and now, for each argument that keeps such."""

    what: Any
    known: list[FoundPlans]


def _known(arguments: Sequence[Any]) -> list[FoundPlans]:
    return [each for each in arguments if isinstance(each, FoundPlans)]


@dataclass(frozen=True)
class _Slim:
    """A ``fitted`` plan by its choice alone: the rest of the plan is large, and is made of that again."""

    fitted: Fitted
    architecture: Architecture
    choice: Choice


def _slim(result: Any) -> Any:
    if not isinstance(result, Fitted) or type(result.plan) is not Plan:
        return result
    without = replace(result, plan=None)  # type: ignore[arg-type]
    return _Slim(without, result.plan.architecture, result.plan.choice)


def _whole(result: Any, arguments: Sequence[Any]) -> Any:
    if not isinstance(result, _Slim):
        return result
    program = next(each for each in arguments if isinstance(each, Program))
    plan = make_plan(program, result.architecture, choice=result.choice)
    return replace(result.fitted, plan=plan)


def _read(stream: int) -> Iterator[Any]:
    """Yield the messages in the pipe ``stream`` until it ends; stop when they are not wanted any more."""
    received = bytearray()
    waiting = select.poll()
    waiting.register(stream, select.POLLIN)
    while True:
        go_on()
        if not waiting.poll(_LOOK_MS):
            continue
        part = os.read(stream, 1 << 16)
        if not part:
            return
        received += part
        while len(received) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(received[:_LENGTH_BYTES], "little")
            if len(received) < end:
                break
            yield pickle.loads(received[_LENGTH_BYTES:end])  # noqa: S301  our own process
            del received[:end]


def _say(message: Any) -> None:
    content = pickle.dumps(message)
    sys.stdout.buffer.write(len(content).to_bytes(_LENGTH_BYTES, "little") + content)
    sys.stdout.buffer.flush()


def main() -> None:
    """Do the task that is read from stdin."""
    from pipeline.program.stopping import telling
    from server.repository.child_limits import limit

    task = pickle.load(sys.stdin.buffer)  # noqa: S301  our own process
    limit(task.server, _MEMORY_BYTES, _CPU_SECONDS, gives_way=task.gives_way)
    try:
        with telling(lambda *told: _say(_Progress(*told))):
            result = _slim(task.function(*task.arguments))
            _say(_Found(result, _known(task.arguments)))
    except Exception as exc:  # noqa: BLE001  the server raises it again
        _say(exc)


if __name__ == "__main__":
    # Pickles name classes by their module, which must not be __main__.
    from server.repository.apart import main as named

    named()
