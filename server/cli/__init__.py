"""The ``layerstream`` command: one group of commands a file, errors as one line on stderr."""

import sys

import typer

from loader.errors import LoaderError
from models.errors import ModelError
from models.sessions import claim_process
from pipeline.devices.base import DeviceError
from pipeline.errors import EngineError, InputError
from pipeline.planning.plan import PlanError
from server.cli import bench, darknet, packs, plan, profile, run, serve, simulate, zoo
from server.cli.output import fail
from server.errors import ServiceError
from server.serve import PortError
from server.settings import SettingsError

BAD_INPUT, FAILURE = 2, 1

app = typer.Typer(
    name="layerstream",
    help="Serve CNNs whose weights stream from disk, all inside one memory budget.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(zoo.app, name="zoo")
app.add_typer(bench.app, name="bench")
app.command("compile")(packs.compile_)
app.command("inspect")(packs.inspect)
app.command("import-darknet")(darknet.import_darknet)
app.command("export-darknet")(darknet.export_darknet)
app.command("profile")(profile.profile)
app.command("simulate")(simulate.simulate)
app.command("plan")(plan.plan)
app.command("run")(run.run)
app.command("serve")(serve.serve)

# Typer's base of usage errors, which has been click's and is by now a copy of its own.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

# Everything here is something that the user gave: a file, a setting, a name, too small a budget.
_BAD_INPUT = (ModelError, PlanError, InputError, SettingsError, ServiceError, PortError)
_FAILURES = (LoaderError, DeviceError, EngineError, OSError)


def main() -> None:
    """Run the command line; exit 0, 2 for bad usage or input, 1 for a failure."""
    claim_process()
    try:
        code = app(standalone_mode=False)
    except _UsageError as exc:
        message = getattr(exc, "format_message", exc.__str__)()
        fail(message or "no command given", BAD_INPUT)
    except typer.Abort:
        fail("interrupted", FAILURE)
    except _BAD_INPUT as exc:
        fail(str(exc), BAD_INPUT)
    except _FAILURES as exc:
        fail(str(exc), FAILURE)
    sys.exit(code if isinstance(code, int) else 0)
