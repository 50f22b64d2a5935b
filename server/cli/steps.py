"""The steps of a command that takes long, shown on a terminal as they pass; nothing in a pipe."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.status import Status
from rich.text import Text

from models.progress import Progress
from server.cli.output import errors
from server.cli.tables import plain


class Working:
    """What a command is doing, in one line that turns; names in it are no markup."""

    def __init__(self, status: Status) -> None:
        self._status = status

    def show(self, what: str) -> None:
        self._status.update(Text(plain(what)))


@contextmanager
def working(what: str) -> Iterator[Working]:
    """Show ``what`` while the block runs."""
    with errors.status(Text(plain(what))) as status:
        yield Working(status)


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
        if self._step and errors.is_terminal:
            seconds = time.monotonic() - self._since
            errors.print(Text(f"  {plain(self._step):<16} {seconds:6.1f} s", "dim"))


@contextmanager
def steps(title: str) -> Iterator[Progress]:
    """Yield what is told of each step; ``title`` says what the command is doing."""
    with working(title) as line:
        shown = _Steps(title, line)
        yield shown
        shown.end()
