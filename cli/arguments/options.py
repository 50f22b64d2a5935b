"""Options that several commands share, and how their texts become values."""

from contextlib import closing
from pathlib import Path
from typing import Annotated, cast

import typer

from loader.readers.disk import REAL_DISK, Disk, paced_disk
from pipeline.devices.base import Device
from pipeline.devices.cuda.scope import Kind, Precision
from pipeline.devices.find import KINDS, PRECISIONS, check_name, open_device
from pipeline.schedule.architectures import ARCHITECTURES, Architecture
from server.settings.sizes import parse_size

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
PackPath = Annotated[Path, typer.Argument(help="A pack: REPOSITORY/NAME or .../VERSION.")]
Ring = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Ring that weights stream through. Default: what helps."),
]
Arena = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Most memory of activations: arena, scratch, tensors."),
]
Pace = Annotated[
    str | None,
    typer.Option(
        metavar="SPEED",
        help="Bytes a second, as 3.5GB/s, of a disk that reads without a core, in place of the real one.",
    ),
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


def disk_of(pace: str | None) -> Disk:
    """Return the disk of ``pace``, as 3.5GB/s; the real one of None.

    Raises:
        typer.BadParameter: it is not a speed.
    """
    if pace is None:
        return REAL_DISK
    try:
        return paced_disk(parse_size(pace.removesuffix("/s")))
    except ValueError as exc:
        message = f"{pace!r} is not a speed; write 3.5GB/s"
        raise typer.BadParameter(message, param_hint="--pace") from exc


def open_named(
    context: typer.Context,
    name: str,
    threads: int | None = None,
    kind: str | None = None,
    precision: str = "fp32",
) -> Device:
    """Return the device that the options name; it is closed when the command ends.

    Raises:
        typer.BadParameter: there is no such name. CudaMissingError: there is no such device.
    """
    for value, known, option in (
        (kind, KINDS, "--memory-kind"),
        (precision, PRECISIONS, "--precision"),
    ):
        if value is not None and value not in known:
            message = f"{value!r} is not one of {', '.join(known)}"
            raise typer.BadParameter(message, param_hint=option)
    try:
        check_name(name)
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--device") from exc
    if name == "cpu" and (kind is not None or precision != "fp32"):
        raise typer.BadParameter("--memory-kind and --precision are for --device cuda")
    return context.with_resource(
        closing(open_device(name, threads, cast("Kind | None", kind), cast("Precision", precision)))
    )


def architecture(name: str, option: str = "--architecture") -> Architecture:
    """Return the architecture called ``name``, which ``option`` gave.

    Raises:
        typer.BadParameter: there is none.
    """
    if name not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise typer.BadParameter(
            f"unknown architecture {name!r}; there are {known}", param_hint=option
        )
    return ARCHITECTURES[name]
