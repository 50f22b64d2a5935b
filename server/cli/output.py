"""What commands print: JSON, tables, facts and sentences on stdout, progress and errors on stderr.

Names come from files of strangers: nothing of what is printed is read as markup, and no character of it
reaches a terminal that is not for reading.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from rich.console import Console
from rich.text import Text

from server.cli.tables import fold, lay_out, lay_out_facts, plain

errors = Console(stderr=True)
console = Console()


def fail(message: str, code: int) -> NoReturn:
    """End the process with one line on stderr."""
    sys.stderr.write(f"layerstream: {_one_line(message)}\n")
    sys.exit(code)


def warn(message: str) -> None:
    """Say on stderr, in one line, what a user should know."""
    sys.stderr.write(f"layerstream: warning: {_one_line(message)}\n")


def print_json(document: Any) -> None:
    """Print ``document`` for programs."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def say(sentence: str) -> None:
    """Print a sentence for people: one line, which in a terminal folds between words."""
    width = _width()
    for line in [sentence] if width is None else fold(sentence, width, cut=False):
        _print(line)


def suggest(what: str, command: str) -> None:
    """Print a command to type, in a line of its own whatever its length, so that it can be copied."""
    _print(f"{what}:")
    _print(f"  {command}")


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and what there is to say of each, aligned."""
    for line in lay_out_facts(facts, _width()):
        _print(line)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table for people, and an empty line: numbers right, texts left, nothing cut.

    In a pipe each row is one line; a terminal's width decides what folds (server/cli/tables.py).
    """
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
    console.print(Text(plain(line), style), soft_wrap=True)


def _width() -> int | None:
    """Return the columns of the terminal, None in a pipe."""
    return console.width if console.is_terminal else None


def _one_line(message: str) -> str:
    return plain(" ".join(message.split()))
