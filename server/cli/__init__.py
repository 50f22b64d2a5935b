"""The ``layerstream`` command: one group of commands a file, errors as one line on stderr."""

import sys
from importlib import import_module

import typer

from loader.errors import LoaderError
from models.errors import ModelError
from models.sessions import claim_process
from pipeline.devices.base import DeviceError
from pipeline.errors import EngineError, InputError
from pipeline.planning.plan import PlanError
from server.cli.output import fail
from server.errors import ServiceError
from server.settings import SettingsError
from server.transport.listener import PortError

BAD_INPUT, FAILURE = 2, 1

#: Module and function of each command, and the groups of commands, which are modules.
_COMMANDS = {
    "compile": ("packs", "compile_"),
    "inspect": ("inspect", "inspect"),
    "import-darknet": ("darknet", "import_darknet"),
    "export-darknet": ("darknet", "export_darknet"),
    "device": ("device", "device"),
    "profile": ("profile", "profile"),
    "simulate": ("simulate", "simulate"),
    "plan": ("plan", "plan"),
    "run": ("run", "run"),
    "serve": ("serve", "serve"),
}
_GROUPS = ("zoo", "bench")


def command_line(asked: str) -> typer.Typer:
    """Return the command ``asked``, or all of them where that is none.

    A server holds what it imported as long as it runs: it should not hold what other commands need.
    """
    app = typer.Typer(
        name="layerstream",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
    )

    @app.callback()
    def _program() -> None:
        """Serve CNNs whose weights stream from disk, all inside one memory budget."""

    known = asked in _COMMANDS or asked in _GROUPS
    for name in _GROUPS:
        if not known or name == asked:
            app.add_typer(import_module(f"server.cli.{name}").app, name=name)
    for name, (module, function) in _COMMANDS.items():
        if not known or name == asked:
            app.command(name)(getattr(import_module(f"server.cli.{module}"), function))
    return app


# Typer's base of usage errors, which has been click's and is by now a copy of its own.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

# Everything here is something that the user gave: a file, a setting, a name, too small a budget.
_BAD_INPUT = (ModelError, PlanError, InputError, SettingsError, ServiceError, PortError)
_FAILURES = (LoaderError, DeviceError, EngineError, MemoryError, OSError)


def main() -> None:
    """Run the command line; exit 0, 2 for bad usage or input, 1 for a failure."""
    claim_process()
    try:
        code = command_line(next(iter(sys.argv[1:]), ""))(standalone_mode=False)
    except _UsageError as exc:
        message = getattr(exc, "format_message", exc.__str__)()
        fail(message or "no command given", BAD_INPUT)
    except typer.Abort:
        fail("interrupted", FAILURE)
    except _BAD_INPUT as exc:
        fail(str(exc), BAD_INPUT)
    except _FAILURES as exc:
        fail(str(exc) or "out of memory", FAILURE)
    sys.exit(code if isinstance(code, int) else 0)
