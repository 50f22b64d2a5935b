"""The table of commands; each is imported when it is called or completed.

A server holds what it imported as long as it runs, and a shell that completes a name makes its user wait.
"""

import platform
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.main import get_command

from cli.printing.help import Branch, Leaf
from models.runtime.heap import kept_imports


class _Command(NamedTuple):
    """Where a command is: its module, and its function there; without one, a group called ``app``.

    ``help``: the first sentence of its own help, which fits a line of 80 characters with its name.
    """

    help: str
    module: str
    function: str = ""


#: The commands by the panels in which ``--help`` shows them.
PANELS = {
    "Serve": {
        "up": _Command("Compile what is new, and serve it.", "up", "up"),
        "serve": _Command("Serve the packs of a repository over HTTP.", "serve", "serve"),
    },
    "Models": {
        "check": _Command(
            "Say whether a network is supported, and what it needs.", "check", "check"
        ),
        "compile": _Command("Compile an ONNX file to a pack.", "compile", "compile_"),
        "inspect": _Command(
            "Show what a pack holds and needs; nothing is run.", "inspect", "inspect"
        ),
        "list": _Command("List the models of a repository, and which would fit.", "list", "list_"),
        "run": _Command("Answer one request, an image or tensors.", "run", "run"),
        "evaluate": _Command(
            "Answer every picture of a data set, and count.", "evaluate", "evaluate"
        ),
        "zoo": _Command("Networks with random weights, to try and to measure.", "zoo"),
    },
    "Memory and time": {
        "profile": _Command(
            "Measure a pack: the disk, and plans against each other.", "profile", "profile"
        ),
        "plan": _Command("Plan packs within a budget: memory and delay.", "plan", "plan"),
        "bench": _Command("Measure on this machine.", "bench"),
    },
    "Operate": {
        "doctor": _Command("Check this machine before it serves.", "doctor", "doctor"),
        "service": _Command("The service of systemd, with limits by its budget.", "service"),
        "key": _Command("Keys that a server asks for: a file of their hashes.", "key"),
        "place": _Command("Say which models go on which nodes.", "place", "place"),
        "device": _Command(
            "Show a device, and the kinds of memory that it has", "device", "device"
        ),
    },
    "Convert": {
        "import-darknet": _Command(
            "Write a network of Darknet as ONNX.", "darknet", "import_darknet"
        ),
        "export-darknet": _Command(
            "Write an imported network's weights for Darknet again.",
            "darknet",
            "export_darknet",
        ),
        "export-c": _Command(
            "Write an ONNX file as C99 with a static arena.", "export_c", "export"
        ),
    },
    "Research": {
        "app": _Command("Show every way to give several models memory.", "app", "app"),
        "simulate": _Command(
            "Predict delay, stalls and memory of each architecture.", "simulate", "simulate"
        ),
        "tiles": _Command("Fuse groups of layers on tiles, and measure them.", "tiles", "tiles"),
        "csdf": _Command("Turn a pack into a CSDF graph, or read one.", "csdf", "csdf"),
    },
}
COMMANDS = {name: command for panel in PANELS.values() for name, command in panel.items()}


class _Program(Branch):
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
    app.command(name, cls=Leaf)(getattr(imported, function))
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

    for panel, commands in PANELS.items():
        for name, command in commands.items():
            app.command(name, help=command.help, rich_help_panel=panel)(_not_yet)
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
