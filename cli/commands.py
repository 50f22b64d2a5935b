"""The table of commands; each is imported when it is called or completed.

A server holds what it imported as long as it runs, and a shell that completes a name makes its user wait.
"""

import platform
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

from models.runtime.heap import kept_imports


class _Command(NamedTuple):
    """Where a command is: its module, and its function there; without one, a group called ``app``.

    ``help``: the first sentence of what it says of itself.
    """

    help: str
    module: str
    function: str = ""


COMMANDS = {
    "up": _Command(
        "Compile what is new, and serve it: files of ONNX, CFG and WEIGHTS of Darknet, folders of packs.",
        "up",
        "up",
    ),
    "compile": _Command(
        "Compile an ONNX file to a pack for this machine, or for a GPU.", "compile", "compile_"
    ),
    "inspect": _Command(
        "Show what a pack holds and what it needs on this machine; nothing is run.",
        "inspect",
        "inspect",
    ),
    "list": _Command(
        "List the models of a repository, and which a budget would serve.", "list", "list_"
    ),
    "profile": _Command(
        "Measure a pack on this machine: its kernels, the disk, and plans against each other.",
        "profile",
        "profile",
    ),
    "plan": _Command(
        "Plan packs within a budget: memory by kind, and with a profile the delay and its bound.",
        "plan",
        "plan",
    ),
    "place": _Command(
        "Say which models go on which nodes: on few, or with few moves from a previous placement.",
        "place",
        "place",
    ),
    "app": _Command(
        "Show every way to give an application of several models memory: the papers' and ours.",
        "app",
        "app",
    ),
    "simulate": _Command(
        "Predict delay, stalls and memory of each architecture from the pack's profile.",
        "simulate",
        "simulate",
    ),
    "tiles": _Command(
        "Fuse groups of layers on tiles, after seed 002: memory predicted, searched for, and measured.",
        "tiles",
        "tiles",
    ),
    "run": _Command("Answer one request, an image or tensors.", "run", "run"),
    "evaluate": _Command(
        "Answer every picture of a data set and count: accuracy, confusion, average precision, agreement.",
        "evaluate",
        "evaluate",
    ),
    "serve": _Command(
        "Serve the packs of a repository over HTTP, inside one memory budget.", "serve", "serve"
    ),
    "service": _Command(
        "The service of systemd, with limits that follow from its budget.", "service"
    ),
    "doctor": _Command(
        "Check this machine before it serves: disks, memory, processor, clocks, limits, files.",
        "doctor",
        "doctor",
    ),
    "key": _Command("Keys that a server asks for: a file of their hashes.", "key"),
    "bench": _Command("Measure on this machine.", "bench"),
    "zoo": _Command("Networks with seeded random weights, to try and to measure with.", "zoo"),
    "import-darknet": _Command("Write a network of Darknet as ONNX.", "darknet", "import_darknet"),
    "export-darknet": _Command(
        "Write the weights of an imported network in Darknet's format again.",
        "darknet",
        "export_darknet",
    ),
    "export-c": _Command(
        "Write an ONNX file as one .c and one .h with a static arena: no malloc, C99.",
        "export_c",
        "export",
    ),
    "csdf": _Command(
        "Turn a pack into a CSDF graph for SDF3, or read one, and find its smallest buffers.",
        "csdf",
        "csdf",
    ),
    "device": _Command(
        "Show a device: what the driver says of it, and which memory kinds the disk can write to.",
        "device",
        "device",
    ),
}


class _Program(TyperGroup):
    """Knows its commands by name and sentence, and imports the one that is called or completed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else loaded(name), rest


def loaded(name: str) -> Any:
    """Import the command or group ``name`` and return it as Typer runs it."""
    _, module, function = COMMANDS[name]
    with kept_imports():
        imported = import_module(f"cli.{module}")
    if not function:
        return get_command(imported.app)
    app = typer.Typer(add_completion=False)
    app.command(name)(getattr(imported, function))
    return get_command(app)


def program() -> typer.Typer:
    """Return the command line; nothing of a command is imported yet."""
    app = typer.Typer(
        name="layerstream",
        cls=_Program,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def _program(
        version: Annotated[
            bool,
            typer.Option(
                "--version", help="Show versions.", is_eager=True, callback=_show_versions
            ),
        ] = False,
    ) -> None:
        """Serve CNNs whose weights stream from disk, all inside one memory budget."""

    for name, command in COMMANDS.items():
        app.command(name, help=command.help)(_not_yet)
    return app


def _not_yet() -> None:
    """Stand for a command that has not been imported."""


def _show_versions(wanted: bool) -> None:
    if wanted:
        typer.echo(versions())
        raise typer.Exit


def versions() -> str:
    """Return one line for people and for reports of faults; nothing that it names is imported."""
    runtime = _version("onnxruntime")
    return (
        f"layerstream {own_version()} (Python {platform.python_version()}, ONNX Runtime {runtime})"
    )


def own_version() -> str:
    """Return the version of this Layerstream."""
    return _version("layerstream")


def _version(distribution: str) -> str:
    from importlib import metadata  # nothing but a version needs it, and it takes long to import

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "not installed"
