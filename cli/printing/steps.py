"""How far a command is that takes long, on a terminal's stderr: a line, steps or a bar; nothing in a pipe.

Names in what is shown are no markup, and no character of them steers the terminal. Rich is imported when
something is shown (output.py).
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from cli.printing.output import errors, is_followed
from models.errors import printable
from models.progress import Progress, silent
from pipeline.program.stopping import telling

if TYPE_CHECKING:
    from rich.progress import Progress as Shown
    from rich.status import Status
    from rich.text import Text


class Working:
    """A line with a spinner that says what a command is doing."""

    def __init__(self, status: "Status") -> None:
        self._status = status

    def show(self, what: str) -> None:
        self._status.update(_text(what))


@contextmanager
def working(what: str) -> Iterator[Working]:
    """Show ``what`` while the block runs."""
    with errors().status(_text(what)) as status:
        yield Working(status)


@contextmanager
def planning() -> Iterator[None]:
    """Show how far what is planned while the block runs has come, where that is searched for."""
    with ExitStack() as shown:

        @cache
        def line() -> Working:
            return shown.enter_context(working("planning"))

        def heard(step: str, done: int, of: int) -> None:
            line().show(f"planning: {step}, {done} of {of}")

        with telling(heard):
            yield


class _Steps:
    """Prints a line for each step that has ended, with its seconds, above the one that runs."""

    def __init__(self, title: str, line: Working) -> None:
        self._title = title
        self._line = line
        self._step = ""
        self._since = time.monotonic()

    def __call__(self, step: str, detail: str = "") -> None:
        if step != self._step:
            self.end()
            self._step, self._since = step, time.monotonic()
        self._line.show(f"{self._title}: {step}{detail and f', {detail}'}")

    def end(self) -> None:
        """Print the step that has ended, if there is one."""
        if self._step and errors().is_terminal:
            seconds = time.monotonic() - self._since
            errors().print(_text(f"  {self._step:<16} {seconds:6.1f} s", "dim"))


@contextmanager
def steps(title: str) -> Iterator[Progress]:
    """Yield what is told of each step; ``title`` says what the command is doing."""
    if not is_followed():
        yield silent
        return
    with working(title) as line:
        shown = _Steps(title, line)
        yield shown
        shown.end()


class Bar:
    """A bar called ``title``; its length is known with the first step."""

    def __init__(self, shown: "Shown", title: str) -> None:
        self._shown = shown
        self._title = _escaped(title)
        self._task = shown.add_task(self._title, total=None)

    def step(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps are behind us."""
        self._shown.update(self._task, completed=max(done, 0), total=total)

    def doing(self, what: str) -> None:
        """Show what is being done now."""
        self._shown.update(self._task, description=f"{self._title}: {_escaped(what)}")


@contextmanager
def bar(title: str) -> Iterator[Bar]:
    """Yield a bar that is gone at the end."""
    from rich.progress import Progress as Shown

    console = errors()
    with Shown(console=console, transient=True, disable=not console.is_terminal) as shown:
        yield Bar(shown, title)


def _text(what: str, style: str = "") -> "Text":
    from rich.text import Text

    return Text(printable(what), style)


def _escaped(what: str) -> str:
    from rich.markup import escape

    return escape(printable(what))
