"""What commands print: JSON or tables on stdout, progress and errors on stderr."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

errors = Console(stderr=True)
console = Console()


def fail(message: str, code: int) -> NoReturn:
    """End the process with one line on stderr."""
    line = " ".join(message.split())
    sys.stderr.write(f"layerstream: {line}\n")
    sys.exit(code)


def warn(message: str) -> None:
    """Say on stderr, in one line, what a user should know."""
    sys.stderr.write(f"layerstream: warning: {' '.join(message.split())}\n")


def say(line: str) -> None:
    """Print a line for people, as it is: nothing in it is markup, and it is not wrapped in a pipe."""
    console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_json(document: Any) -> None:
    """Print ``document`` for programs."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table for people: the first column left, the others right."""
    table = Table(title=title, title_justify="left")
    for position, column in enumerate(columns):
        table.add_column(column, justify="right" if position else "left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
