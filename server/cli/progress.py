"""How far a command is that takes a while: a bar on a terminal's stderr that names what is being done."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import Progress, TaskID

from server.cli.output import errors


class Bar:
    """A bar called ``title``; its length is known with the first step."""

    def __init__(self, progress: Progress, title: str) -> None:
        self._progress = progress
        self._title = escape(title)
        self._task: TaskID = progress.add_task(self._title, total=None)

    def step(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps are behind us."""
        self._progress.update(self._task, completed=max(done, 0), total=total)

    def doing(self, what: str) -> None:
        """Show what is being done now."""
        self._progress.update(self._task, description=f"{self._title}: {escape(what)}")


@contextmanager
def bar(title: str) -> Iterator[Bar]:
    """Yield a bar that is gone at the end, and never there where stderr is no terminal."""
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        yield Bar(progress, title)
