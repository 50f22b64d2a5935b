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
    ``example``: what may stand behind its name.
    """

    help: str
    module: str
    function: str = ""
    example: str = ""

    def with_example(self, name: str, text: str) -> str:
        """Return ``text``, its help, with the example behind the first sentence."""
        rest = text.removeprefix(self.help).strip()
        return f"{self.help}\n\nExample: layerstream {name} {self.example}\n\n{rest}".strip()


#: The commands by the panels in which ``--help`` shows them.
PANELS = {
    "Serve": {
        "up": _Command(
            "Compile what is new, and serve it.", "up", "up", example="yolov8n.onnx --memory 256MB"
        ),
        "serve": _Command(
            "Serve the packs of a repository over HTTP.",
            "serve",
            "serve",
            example="--repository repository --budget 64MiB",
        ),
    },
    "Models": {
        "check": _Command(
            "Say whether a network is supported, and what it needs.",
            "check",
            "check",
            example="yolov8n.onnx",
        ),
        "compile": _Command(
            "Compile an ONNX file to a pack.",
            "compile",
            "compile_",
            example="yolov8n.onnx -o repository/yolov8n",
        ),
        "inspect": _Command(
            "Show what a pack holds and needs; nothing is run.",
            "inspect",
            "inspect",
            example="repository/yolov8n",
        ),
        "list": _Command(
            "List the models of a repository, and which would fit.",
            "list",
            "list_",
            example="repository --budget 64MiB",
        ),
        "run": _Command(
            "Answer one request, an image or tensors.",
            "run",
            "run",
            example="repository/yolov8n --image dog.jpg --draw found.png",
        ),
        "evaluate": _Command(
            "Answer every picture of a data set, and count.",
            "evaluate",
            "evaluate",
            example="repository/resnet50 --dataset pictures",
        ),
        "zoo": _Command(
            "Networks with random weights, to try and to measure.",
            "zoo",
            example="build resnet50 -o resnet50.onnx",
        ),
    },
    "Memory and time": {
        "profile": _Command(
            "Measure a pack: the disk, and plans against each other.",
            "profile",
            "profile",
            example="repository/yolov8n",
        ),
        "plan": _Command(
            "Plan packs within a budget: memory and delay.",
            "plan",
            "plan",
            example="repository/yolov8n --budget 16MiB",
        ),
        "bench": _Command(
            "Measure on this machine.", "bench", example="pipeline repository/yolov8n"
        ),
    },
    "Operate": {
        "doctor": _Command(
            "Check this machine before it serves.",
            "doctor",
            "doctor",
            example="repository/yolov8n --memory 256MB",
        ),
        "service": _Command(
            "The service of systemd, with limits by its budget.",
            "service",
            example="install --budget 256MiB",
        ),
        "key": _Command(
            "Keys that a server asks for: a file of their hashes.", "key", example="add keys camera"
        ),
        "place": _Command(
            "Say which models go on which nodes.",
            "place",
            "place",
            example="models.toml nodes.toml",
        ),
        "device": _Command(
            "Show a device, and the kinds of memory that it has.",
            "device",
            "device",
            example="cuda",
        ),
    },
    "Convert": {
        "import-darknet": _Command(
            "Write a network of Darknet as ONNX.",
            "darknet",
            "import_darknet",
            example="yolov4.cfg yolov4.weights -o yolov4.onnx",
        ),
        "export-darknet": _Command(
            "Write an imported network's weights for Darknet again.",
            "darknet",
            "export_darknet",
            example="yolov4.onnx -o yolov4.weights",
        ),
        "export-c": _Command(
            "Write an ONNX file as C99 with a static arena.",
            "export_c",
            "export",
            example="resnet8.onnx -o c",
        ),
    },
    "Research": {
        "app": _Command(
            "Show every way to give several models memory.",
            "app",
            "app",
            example="application.toml --budget 64MiB",
        ),
        "simulate": _Command(
            "Predict delay, stalls and memory of each architecture.",
            "simulate",
            "simulate",
            example="repository/yolov8n",
        ),
        "tiles": _Command(
            "Fuse groups of layers on tiles, and measure them.",
            "tiles",
            "tiles",
            example="repository/yolov8n",
        ),
        "csdf": _Command(
            "Turn a pack into a CSDF graph, or read one.",
            "csdf",
            "csdf",
            example="repository/yolov8n -o yolov8n.xml",
        ),
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
    command = COMMANDS[name]
    with kept_imports():
        imported = import_module(f"cli.{command.module}")
    if not command.function:
        loaded_command = get_command(imported.app)
    else:
        app = typer.Typer(add_completion=False)
        app.command(name, cls=Leaf)(getattr(imported, command.function))
        loaded_command = get_command(app)
    loaded_command.help = command.with_example(name, loaded_command.help or "")
    return loaded_command


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
