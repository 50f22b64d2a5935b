"""Options that several commands share, and how their texts become values."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from models.sizes import Lengths, parse_shapes, parse_size
from pipeline.checking import Depth
from pipeline.devices.names import KINDS, PRECISIONS, Kind, Precision, check_name
from pipeline.schedule.architectures import ARCHITECTURES, Architecture
from server.settings.per_model import MOST_THREADS
from server.settings.table import setting

# Options of `compile`, too, which imports what runs a pack when it has one.
if TYPE_CHECKING:
    from loader.readers.disk import Disk
    from models.packs.manifest import Manifest
    from models.packs.pack import Pack
    from pipeline.devices.base import Device
    from pipeline.planning.plan import AnyPlan
    from pipeline.profiles.profile import Profile
    from pipeline.program.program import Program

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Check = Annotated[
    Depth,
    typer.Option(
        help="How a pack is compared with ONNX Runtime on its source. quick: with all threads, in the "
        "smallest plan and with all weights in memory. full: in a plan between, too, and with one thread."
    ),
]
PackPath = Annotated[Path, typer.Argument(help="A pack: REPOSITORY/NAME or .../VERSION.")]
Batch = Annotated[int | None, typer.Option(min=1, help="What an unknown batch becomes; default 1.")]
Shapes = Annotated[
    list[str] | None,
    typer.Option(help="NAME=1,3,224,224, repeatable; several in one pack: tokens=32,128,512."),
]
InputNames = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="An input with a value that requests may replace, though it looks like a weight.",
    ),
]
WithoutOutputs = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Leave out an output, and what only it needs, repeatable.",
    ),
]
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


def shapes_of(texts: list[str] | None) -> dict[str, Lengths]:
    """Return the shapes of inputs by name.

    Raises:
        typer.BadParameter: a text is none.
    """
    try:
        return parse_shapes(texts or [])
    except ValueError as exc:
        raise typer.BadParameter(str(exc), param_hint="--shape") from exc


def repeated(**options: list[str] | None) -> tuple[str, ...]:
    """Return repeatable ``options``, by the names of their parameters, as words of a command."""
    return tuple(
        word
        for name, texts in options.items()
        for text in texts or ()
        for word in (f"--{name.replace('_', '-')}", text)
    )


def disk_of(pace: str | None) -> "Disk":
    """Return the disk of ``pace``, as 3.5GB/s; the real one of None.

    Raises:
        typer.BadParameter: it is not a speed.
    """
    from loader.readers.disk import REAL_DISK, paced_disk  # NumPy: not for `up`

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
) -> "Device":
    """Return the device that the options name; it is closed when the command ends.

    Raises:
        typer.BadParameter: there is no such name. CudaMissingError: there is no such device.
    """
    from pipeline.devices.find import open_device

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


# Options of commands that are settings of ``serve``, too: the same flags, the same words.


def _of(name: str) -> Any:
    """Return the option for what is a setting of ``serve``, too: the same flag, the same words."""
    item = setting(name)
    return typer.Option(item.flag, help=item.help, metavar=item.value or None, show_default=False)


Memory = Annotated[str | None, _of("memory")]
Budget = Annotated[str | None, _of("budget")]
Host = Annotated[str, _of("host")]
Port = Annotated[int, _of("port")]
GrpcPort = Annotated[int | None, _of("grpc_port")]
MaxConnections = Annotated[int, _of("max_connections")]
Keys = Annotated[Path | None, _of("keys")]
TlsCertificate = Annotated[Path | None, _of("tls_certificate")]
TlsKey = Annotated[Path | None, _of("tls_key")]
RequestMemory = Annotated[str | None, _of("request_memory")]
ActivationsOption = Annotated[Literal["auto", "own", "shared"], _of("activations")]
Names = Annotated[list[str] | None, _of("models")]
ArchitectureName = Annotated[str, _of("architecture")]
DeviceName = Annotated[str, _of("device")]
Recompile = Annotated[bool, _of("recompile")]
MemoryKind = Annotated[str | None, _of("memory_kind")]
PrecisionName = Annotated[str, _of("precision")]
Verify = Annotated[Literal["first", "always"], _of("verify")]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=MOST_THREADS, metavar="NUMBER", help=setting("threads").help),
]


Weights = Annotated[
    str | None, typer.Option(help="Memory for weights, e.g. 12MiB, or a part of all, e.g. 5%.")
]


def weight_bytes(text: str | None, manifest: "Manifest", option: str = "--weights") -> int | None:
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


# What ``simulate`` and ``plan`` share: the profile of a pack here, and how plans are printed.

#: The parts of a plan's memory; they add up to ``total_bytes``.
PARTS = (
    "weight_bytes",
    "arena_bytes",
    "scratch_bytes",
    "session_bytes",
    "object_bytes",
    "tokenizer_bytes",
    "io_bytes",
)
#: More than any machine has: without a budget, only other limits count.
UNLIMITED_BYTES = 1 << 62


def profiled(pack: "Pack", device: "Device") -> "tuple[Program, Profile]":
    """Return ``pack`` as ``device`` runs it, and its profile, as which the device works from now on.

    Raises:
        ProfileError: there is none for it here.
    """
    from pipeline.profiles.machine import this_machine
    from pipeline.profiles.profile_file import load_profile
    from pipeline.program.prepare import prepare

    profile = load_profile(pack, this_machine(pack.weights_path, device))
    device.tune(profile.tuning)
    return prepare(pack, device), profile


def memory_of(plan: "AnyPlan") -> dict[str, int]:
    """Return the parts of a plan's memory and their sum."""
    return {"total_bytes": plan.total_bytes, **{part: getattr(plan, part) for part in PARTS}}
