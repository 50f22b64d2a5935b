"""Long searches in processes of their own: neither the interpreter nor the memory of the server is theirs.

A search is pure Python, and holds the interpreter's lock: on a busy machine a thread that does so and waits
for a core stops the event loop for that long. But a process takes memory beside the budget. Where the limit
of the service leaves no room for that, searches run on the thread that asks. What is sent are pickles, to
and from our own process.
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
#: How soon a search ends that nobody wants any more.
_LOOK_MS = 50
_MEMORY_BYTES = 4 << 30
#: What a process takes that searches for the plan of a large network; 60 to 150 MB were measured.
APART_BYTES = 192 << 20
_CPU_SECONDS = 1800

T = TypeVar("T")


class SearchApart(Search):
    """Searches on the thread that asks where that is brief, else in a process that ``command`` runs.

    ``spare_bytes``: returns what is free beside all that the service itself may come to hold.
    """

    def __init__(self, spare_bytes: Callable[[], int], command: Sequence[str] = _COMMAND) -> None:
        self._spare_bytes = spare_bytes
        self._command = tuple(command)

    def fully(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what ``function`` returns; what it tells of its progress is told here, too.

        Raises:
            PlanningStoppedError: the plan is not wanted any more. PlanError: the process ended without a
                word. Otherwise what ``function`` raises.
        """
        found = self.briefly(function, *arguments)
        return self._apart(function, arguments, gives_way=True) if found is None else found

    def now(self, function: Callable[..., T], *arguments: Any) -> T:
        """Do as ``fully``, with the priority of the server."""
        found = self.briefly(function, *arguments)
        return self._apart(function, arguments, gives_way=False) if found is None else found

    def _apart(self, function: Callable[..., T], arguments: Sequence[Any], gives_way: bool) -> T:
        if self._spare_bytes() < APART_BYTES:
            return function(*arguments)
        task = _Task(function, tuple(arguments), os.getpid(), gives_way)
        said: Any = None
        with contextlib.closing(self._said(task)) as all_said:
            for said in all_said:
                if isinstance(said, _Progress):
                    tell(said.step, said.done, said.of)
        if isinstance(said, Exception):
            raise said
        if not isinstance(said, _Found):
            raise PlanError("the search for a plan ended without a word")
        for mine, theirs in zip(_known(arguments), said.known, strict=True):
            mine.take(theirs)
        return _whole(said.what, arguments)  # type: ignore[no-any-return]

    def _said(self, task: "_Task") -> Generator[Any]:
        """Yield what a process says of ``task``; it is gone when this ends."""
        process = subprocess.Popen(  # noqa: S603  ourselves
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
    """``known``: what was found before and now, of each of the arguments that know such."""

    what: Any
    known: list[FoundPlans]


def _known(arguments: Sequence[Any]) -> list[FoundPlans]:
    return [each for each in arguments if isinstance(each, FoundPlans)]


@dataclass(frozen=True)
class _Slim:
    """A ``fitted`` plan as what was chosen: all the rest of it follows from that, and is large."""

    fitted: Fitted
    architecture: Architecture
    choice: Choice


def _slim(found: Any) -> Any:
    if not isinstance(found, Fitted) or type(found.plan) is not Plan:
        return found
    without = replace(found, plan=None)  # type: ignore[arg-type]
    return _Slim(without, found.plan.architecture, found.plan.choice)


def _whole(found: Any, arguments: Sequence[Any]) -> Any:
    if not isinstance(found, _Slim):
        return found
    program = next(each for each in arguments if isinstance(each, Program))
    plan = make_plan(program, found.architecture, choice=found.choice)
    return replace(found.fitted, plan=plan)


def _read(stream: int) -> Iterator[Any]:
    """Yield what comes through the pipe ``stream`` until it ends; asks whether that is still wanted."""
    held = bytearray()
    waiting = select.poll()
    waiting.register(stream, select.POLLIN)
    while True:
        go_on()
        if not waiting.poll(_LOOK_MS):
            continue
        part = os.read(stream, 1 << 16)
        if not part:
            return
        held += part
        while len(held) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(held[:_LENGTH_BYTES], "little")
            if len(held) < end:
                break
            yield pickle.loads(held[_LENGTH_BYTES:end])  # noqa: S301  our own process
            del held[:end]


def _say(said: Any) -> None:
    content = pickle.dumps(said)
    sys.stdout.buffer.write(len(content).to_bytes(_LENGTH_BYTES, "little") + content)
    sys.stdout.buffer.flush()


def main() -> None:
    """Do the task that comes through stdin."""
    from pipeline.program.stopping import telling
    from server.repository.child_limits import limit

    task = pickle.load(sys.stdin.buffer)  # noqa: S301  our own process
    limit(task.server, _MEMORY_BYTES, _CPU_SECONDS, gives_way=task.gives_way)
    try:
        with telling(lambda *told: _say(_Progress(*told))):
            found = _slim(task.function(*task.arguments))
            _say(_Found(found, _known(task.arguments)))
    except Exception as exc:  # noqa: BLE001  whoever asked hears of it
        _say(exc)


if __name__ == "__main__":
    # What is pickled names its classes by this module.
    from server.repository.apart import main as named

    named()
