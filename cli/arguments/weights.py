"""The option ``--weights``: how much memory weights may take, in bytes or as a part of them."""

from typing import Annotated

import typer

from cli.arguments.options import size
from models.packs.manifest import Manifest

Weights = Annotated[
    str | None, typer.Option(help="Memory for weights, e.g. 12MiB, or a part of all, e.g. 5%.")
]


def weight_bytes(text: str | None, manifest: Manifest, option: str = "--weights") -> int | None:
    """Return the bytes of ``text`` for a model; None stays None.

    Raises:
        typer.BadParameter: neither a size nor a percentage above 0 and up to 100.
    """
    if text is None or not text.rstrip().endswith("%"):
        return size(text, option)
    number = text.rstrip()[:-1]
    try:
        percent = float(number)
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise typer.BadParameter(f"{text!r} is not a part of the weights", param_hint=option)
    return int(manifest.weight_bytes * percent / 100)
