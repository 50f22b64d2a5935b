"""What commands print: JSON, tables, facts and sentences on stdout, progress and errors on stderr.

Names come from files of strangers: nothing of what is printed is read as markup, and no character of it
reaches a terminal that is not for reading. Rich and the tables are imported when something is printed: a
server, which imports this to say what is wrong with its settings, would hold their 5 MB as long as it runs.
"""

import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from models.errors import printable
from models.whole_files import check_users_file, users_file
from pipeline.execution.errors import InputError
from server.operation.logs import is_journal, priority

if TYPE_CHECKING:
    from rich.console import Console

# By these variables Rich takes anything for a terminal.
_TOLD = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})
_STANDARD_ERROR = 2


def console() -> "Console | None":
    """Return standard output as Rich has it; None in a pipe, for which it would be imported in vain."""
    return _console() if sys.stdout.isatty() or not _TOLD.isdisjoint(os.environ) else None


@cache
def _console() -> "Console":
    from rich.console import Console

    return Console()


def is_followed() -> bool:
    """Return whether a user follows on standard error what a command is doing."""
    return sys.stderr.isatty() or not _TOLD.isdisjoint(os.environ)


@cache
def errors() -> "Console":
    """Return standard error, where commands say what they are doing."""
    from rich.console import Console

    return Console(stderr=True)


class OutputError(OSError):
    """Standard output cannot be written."""

    def __str__(self) -> str:
        return f"standard output cannot be written: {self.strerror}"


class _Descriptor(io.FileIO):
    """The descriptor of standard output, whose errors say that they are its."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as exc:
            raise OutputError(exc.errno, exc.strerror) from exc


def occupy_descriptors() -> None:
    """Open the null device for each of the descriptors 0, 1 and 2 that the process was started without.

    Another file would get its number: a connection, a pack, the event loop's queue. C libraries write their
    messages to 2 whatever it is, and libuv ends the process when it closes one of the three.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


@contextlib.contextmanager
def standard_output() -> Iterator[None]:
    """Have what is printed inside go to this process's standard output, all of it before the end.

    Output that goes elsewhere goes on to do so.

    Raises:
        OutputError: standard output cannot be written.
    """
    original = sys.__stdout__
    if sys.stdout is not original:
        yield
        return
    descriptor, encoding, errors, to_terminal = _unwritable(), "utf-8", "strict", False
    if original is not None:
        original.flush()
        descriptor, to_terminal = original.fileno(), original.isatty()
        encoding, errors = original.encoding, original.errors or errors
    named = io.BufferedWriter(_Descriptor(descriptor, "w", closefd=False))
    sys.stdout = shown = io.TextIOWrapper(named, encoding, errors, line_buffering=to_terminal)
    try:
        yield
    finally:
        sys.stdout = original  # it holds nothing that Python, as it ends, would try to write again
        shown.flush()


def lose_output_where_there_is_none() -> None:
    """Have what a service prints go nowhere where it was started without standard output.

    A command that cannot print has failed; of a service what it prints is the least, so it goes on.
    """
    if sys.__stdout__ is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115


def _unwritable() -> int:
    """Return a descriptor to which every write fails, for a process that was started without an output."""
    return os.open(os.devnull, os.O_RDONLY)


class Warnings(logging.Handler):
    """Says warnings of the packages below as commands say theirs."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message of ``record`` in one line."""
        warn(record.getMessage())


class CommandFailure(SystemExit):
    """The end of a command that fails; ``message``: why, as standard error says it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(code)
        self.message = message


def fail(message: str, code: int, *more: str) -> NoReturn:
    """End the process with a line on stderr for ``message``, and for each of ``more``."""
    begin = priority(logging.ERROR) if is_journal(sys.stderr) else ""
    for line in (message, *more):
        sys.stderr.write(f"{begin}layerstream: {_one_line(line)}\n")
    raise CommandFailure(message, code)


def warn(message: str) -> None:
    """Print a line on stderr that a user should know."""
    sys.stderr.write(f"layerstream: warning: {_one_line(message)}\n")


def tell(message: str) -> None:
    """Print the progress of a command as a line on stderr."""
    sys.stderr.write(f"{_one_line(message)}\n")


def print_json(document: Any) -> None:
    """Print ``document`` for programs."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def check_text(path: Path) -> None:
    """Refuse a file that ``write_text`` could not write, before long work whose result it would be.

    Raises:
        InputError: it cannot be written.
    """
    with _refusing(path):
        check_users_file(path)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to a file that the user named.

    Raises:
        InputError: it cannot be written.
    """
    with _refusing(path), users_file(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Raise an InputError that names ``path`` where the system refuses it."""
    try:
        yield
    except OSError as exc:
        raise InputError(f"{path}: {exc.strerror or exc}") from exc


def say(sentence: str) -> None:
    """Print a sentence for people: one line, which in a terminal folds between words."""
    width = _width()
    if width is None:
        _print(sentence)
        return
    from cli.printing.tables import fold

    for line in fold(sentence, width, cut=False):
        _print(line)


def suggest(what: str, command: str) -> None:
    """Print a command to type, in a line of its own whatever its length, so that it can be copied."""
    _print(f"{what}:")
    _print(f"  {command}")


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and what there is to say of each, aligned."""
    from cli.printing.tables import lay_out_facts

    for line in lay_out_facts(facts, _width()):
        _print(line)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table for people, and an empty line: numbers right, texts left, nothing cut.

    In a pipe each row is one line; a terminal's width decides what folds (cli/printing/tables.py).
    """
    from cli.printing.tables import lay_out

    table = lay_out(columns, rows, _width())
    _print(title, "bold")
    for line in table.head[:-1]:
        _print(line)
    for line in table.head[-1:]:
        _print(line, "underline")
    for line in table.body:
        _print(line)
    _print("")


def _print(line: str, style: str = "") -> None:
    shown = console()
    if shown is None:
        sys.stdout.write(f"{printable(line)}\n")
        return
    from rich.text import Text

    shown.print(Text(printable(line), style), soft_wrap=True)


def _width() -> int | None:
    """Return the columns of the terminal, None in a pipe."""
    shown = console()
    return shown.width if shown is not None and shown.is_terminal else None


def _one_line(message: str) -> str:
    return printable(" ".join(message.split()))
