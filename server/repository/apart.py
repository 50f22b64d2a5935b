"""Long searches for plans, in processes of their own.

A search is pure Python and holds the interpreter's lock: on a busy machine a thread that holds it and waits
for a core would stop the event loop for that long. But a process takes memory beside the budget, so where
the limit of the service leaves no room for that, searches run on the calling thread.
"""

import contextlib
import importlib
import os
import select
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from models.processes import Child, start
from pipeline.budget.search import Search
from pipeline.fitting.wanted import EnginePlanResult
from pipeline.planning.found_plans import FoundPlans, StoredPlans
from pipeline.planning.make import make_plan
from pipeline.planning.plan import Choice, Plan, PlanError
from pipeline.program.program import Program
from pipeline.program.stopping import go_on, tell, telling
from pipeline.schedule.architectures import Architecture
from server.repository.limited_process import (
    COMMAND,
    Ended,
    Failed,
    Limits,
    Message,
    ProgressMessage,
    message_of,
    name_of,
    say,
    task,
)
from server.repository.records import RecordError, from_json, to_json

#: A search that is not wanted any more ends within so many seconds.
_LOOK_SECONDS = 0.05
#: So many times as long a search is brief while nothing serves.
_IDLE_TIMES = 5
_LIMITS = Limits(memory_bytes=4 << 30, cpu_seconds=1800)
#: The memory of a process that searches for the plan of a large network; 60 to 150 MB were measured.
APART_BYTES = 192 << 20
_READ_BYTES = 1 << 16
#: The packages whose errors a search may end with.
_ERRORS_OF = frozenset({"models", "loader", "pipeline", "server"})

T = TypeVar("T")


class SearchApart(Search):
    """Searches on the calling thread where that is brief, else in a process of its own.

    ``spare_bytes``: returns the memory that stays free even when the service holds all that it may.
    ``is_idle``: returns whether no model is loaded, whose requests would wait: then brief is as long as a
    process takes to begin, which for the start of a small network would be more than its search.
    """

    def __init__(self, spare_bytes: Callable[[], int], is_idle: Callable[[], bool]) -> None:
        self._spare_bytes = spare_bytes
        self._is_idle = is_idle

    @property
    def brief_seconds(self) -> float:
        """How long ``briefly`` may compute."""
        return super().brief_seconds * (_IDLE_TIMES if self._is_idle() else 1)

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
        question = to_json([*map(_portable, arguments)])
        todo = task(searched, (name_of(function), question), limits)
        child = start(COMMAND, 0)  # it writes no file
        last: Message | None = None
        with contextlib.closing(_messages(child, todo)) as messages:
            for last in messages:
                if isinstance(last, ProgressMessage):
                    tell(*_progress(last.message))
        if isinstance(last, Failed):
            raise _error(last) from last.fault
        if not isinstance(last, Ended):
            status = ChildProcessError(child.exit_text())
            raise PlanError(f"the search for a plan ended without a word ({status})") from status
        try:
            result, caches = from_json(last.result)
        except RecordError as exc:
            raise PlanError(f"the search for a plan: {exc}") from exc
        for mine, theirs in zip(_plan_caches(arguments), caches, strict=True):
            mine.take(theirs.plans())
        return _whole(result, arguments)  # type: ignore[no-any-return]


def _messages(child: Child, todo: bytes) -> Generator[Message]:
    """Yield what ``child`` says, which does ``todo``; it ends with this generator."""
    process = child.process
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(todo)
                process.stdin.close()
            for line in _lines(process.stdout.fileno()):
                yield _message(line)
        finally:
            process.kill()


def _message(line: bytes) -> Message:
    try:
        return message_of(line)
    except ValueError as exc:
        raise PlanError(f"the search for a plan says what is no message: {exc}") from exc


def _lines(descriptor: int) -> Generator[bytes]:
    """Yield the lines that come from ``descriptor``, as long as the plan is wanted."""
    waiting, partial = select.poll(), bytearray()
    waiting.register(descriptor, select.POLLIN)
    while True:
        go_on()
        if not waiting.poll(_LOOK_SECONDS * 1e3):
            continue
        read = os.read(descriptor, _READ_BYTES)
        if not read:
            return
        *lines, rest = read.split(b"\n")
        for line in lines:
            yield bytes(partial) + line
            partial.clear()
        partial += rest


def _progress(message: Any) -> tuple[str, int, int]:
    match message:
        case [str(step), int(done), int(of)]:
            return step, done, of
    raise PlanError("the search for a plan says what is no progress")


def _error(failed: Failed) -> Exception:
    """Return the error that ended a search, if it is one of ours or Python's, with its text."""
    module, _, name = failed.error.partition(":")
    if module == "builtins" or module.partition(".")[0] in _ERRORS_OF:
        kind = getattr(importlib.import_module(module), name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind.__new__(kind, failed.message)
    return PlanError(f"the search for a plan: {name}: {failed.message}")


def searched(function: str, question: Any) -> Any:
    """Return the result of ``function``, module:name, and the plans found before and now.

    Both and the arguments, ``question``, are records as JSON: this runs in the child process.
    """
    module, _, name = function.partition(":")
    arguments = [_usable(argument) for argument in from_json(question)]
    with telling(lambda *told: say(told)):
        result = getattr(importlib.import_module(module), name)(*arguments)
    return to_json([_slim(result), [_Plans.of(plans) for plans in _plan_caches(arguments)]])


@dataclass(frozen=True)
class _Plans:
    """Found plans on their way between processes: lock and store stay."""

    stored: StoredPlans

    @classmethod
    def of(cls, plans: FoundPlans) -> "_Plans":
        return cls(plans.all())

    def plans(self) -> FoundPlans:
        return FoundPlans(self.stored)


def _portable(argument: Any) -> Any:
    return _Plans.of(argument) if isinstance(argument, FoundPlans) else argument


def _usable(argument: Any) -> Any:
    return argument.plans() if isinstance(argument, _Plans) else argument


def _plan_caches(arguments: Sequence[Any]) -> list[FoundPlans]:
    return [argument for argument in arguments if isinstance(argument, FoundPlans)]


@dataclass(frozen=True)
class _Slim:
    """A ``fitted`` plan by its choice alone: the rest of the plan is large, and is made of that again."""

    fitted: EnginePlanResult
    architecture: Architecture
    choice: Choice


def _slim(result: Any) -> Any:
    if not isinstance(result, EnginePlanResult) or type(result.plan) is not Plan:
        return result
    without = replace(result, plan=None)  # type: ignore[arg-type]
    return _Slim(without, result.plan.architecture, result.plan.choice)


def _whole(result: Any, arguments: Sequence[Any]) -> Any:
    if not isinstance(result, _Slim):
        return result
    program = next(argument for argument in arguments if isinstance(argument, Program))
    plan = make_plan(program, result.architecture, choice=result.choice)
    return replace(result.fitted, plan=plan)
