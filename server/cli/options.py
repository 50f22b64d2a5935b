"""Options that several commands share, and how their texts become values."""

from pathlib import Path
from typing import Annotated

import typer

from pipeline.architectures import ARCHITECTURES, Architecture
from server.sizes import parse_size

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
PackPath = Annotated[Path, typer.Argument(help="A pack: REPOSITORY/NAME or .../VERSION.")]
Ring = Annotated[
    str | None, typer.Option(help="Size of the weight ring, e.g. 4MiB; default: as much as helps.")
]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Compute threads; default one a core.")
]


def size(text: str | None, option: str) -> int | None:
    """Return the bytes of ``text``; None stays None.

    Raises:
        typer.BadParameter: it is not a size.
    """
    try:
        return None if text is None else parse_size(text)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint=option) from exc


def architecture(name: str) -> Architecture:
    """Return the architecture called ``name``.

    Raises:
        typer.BadParameter: there is none.
    """
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise typer.BadParameter(f"unknown architecture {name!r}; there are {known}")
    return ARCHITECTURES[name]
