"""Long searches for plans, in processes of their own.

A search is pure Python and holds the interpreter's lock: on a busy machine a thread that holds it and waits
for a core would stop the event loop for that long. But a process takes memory beside the budget, so where
the limit of the service leaves no room for that, searches run on the calling thread.
"""

import contextlib
import os
import pickle
import subprocess
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from pipeline.fitting.wanted import Fitted
from pipeline.planning.found_plans import FoundPlans
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.program.program import Program
from pipeline.program.stopping import go_on, tell, telling
from pipeline.schedule.architectures import Architecture
from server.memory.search import Search
from server.repository.limited_process import COMMAND, Ended, Limits, Task, say

#: A search that is not wanted any more ends within so many seconds.
_LOOK_SECONDS = 0.05
_LIMITS = Limits(memory_bytes=4 << 30, cpu_seconds=1800)
#: The memory of a process that searches for the plan of a large network; 60 to 150 MB were measured.
APART_BYTES = 192 << 20

T = TypeVar("T")


class SearchApart(Search):
    """Searches on the calling thread where that is brief, else in a process of its own.

    ``spare_bytes``: returns the memory that stays free even when the service holds all that it may.
    """

    def __init__(self, spare_bytes: Callable[[], int]) -> None:
        self._spare_bytes = spare_bytes

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
        limits = replace(_LIMITS, gives_way=gives_way)
        message: Any = None
        with contextlib.closing(_said(Task(_searched, (function, arguments), limits))) as messages:
            for message in messages:
                if isinstance(message, _Progress):
                    tell(message.step, message.done, message.of)
        if isinstance(message, Exception):
            raise message
        if not isinstance(message, Ended):
            raise PlanError("the search for a plan ended without a word")
        result, known = message.result
        for mine, theirs in zip(_known(arguments), known, strict=True):
            mine.take(theirs)
        return _whole(result, arguments)  # type: ignore[no-any-return]


def _said(task: Task) -> Generator[Any]:
    """Yield what a process says that does ``task``; it ends with this generator."""
    process = subprocess.Popen(  # noqa: S603  the server's own program
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process, Connection(os.dup(process.stdout.fileno()), writable=False) as messages:
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(pickle.dumps(task))
                process.stdin.close()
            with contextlib.suppress(EOFError):
                while True:
                    go_on()
                    if messages.poll(_LOOK_SECONDS):
                        yield messages.recv()
        finally:
            process.kill()


def _searched(
    function: Callable[..., Any], arguments: Sequence[Any]
) -> tuple[Any, list[FoundPlans]]:
    """Return the result of ``function``, and the plans found before and now, in the child process."""
    with telling(lambda *told: say(_Progress(*told))):
        return _slim(function(*arguments)), _known(arguments)


@dataclass(frozen=True)
class _Progress:
    step: str
    done: int
    of: int


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
