"""The process of a command: it runs one, says an error in one line on stderr, and exits with its status."""

import errno
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from cli.printing.output import OutputError, Warnings, fail, occupy_descriptors, standard_output
from models.runtime.sessions import claim_process
from server.errors import system_hint

BAD_INPUT, FAILURE = 2, 1
#: Of `compile`: it takes more memory than there is.
NO_MEMORY = 3
#: The exit status after Ctrl-C, of Typer and of shells for a process that SIGINT ended.
_INTERRUPTED = 130

#: What Python says, in no class of its own.
_NO_THREAD = "can't start new thread"


def main() -> None:
    """Run the command line; exit 0, 2 for bad usage or input, 1 for a failure, 130 after Ctrl-C."""
    run_process(_command_line)


def _command_line() -> object:
    import typer

    from cli.commands import program

    try:
        return program()(standalone_mode=False)
    except typer.TyperException as exc:
        fail(exc.format_message() or "no command given", BAD_INPUT)


def run_process(command: Callable[[], object]) -> None:
    """Run ``command`` as all that this process does, and exit as ``main``."""
    occupy_descriptors()
    claim_process()
    if sys.stderr is None:
        # What would be said there is lost, and nothing else.
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    logging.lastResort = Warnings(logging.WARNING)  # serve has handlers of its own
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        with standard_output():
            code = command()
    except SystemExit:  # completion has answered; the errors below are not worth their imports
        raise
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except OutputError as exc:
        # What reads it may have all that it wants: `layerstream list | head`.
        if exc.errno == errno.EPIPE:
            sys.exit(FAILURE)
        fail(str(exc), FAILURE)
    except _bad_input() as exc:
        from server.faults import may_pass

        # A service manager tries a failure again, bad input never.
        first, *rest = getattr(exc, "reasons", ()) or (str(exc),)
        status = FAILURE if may_pass(exc) else BAD_INPUT
        fail(f"{first}{system_hint(exc)}", status, *rest)
    except _failures() as exc:
        fail(f"{str(exc) or 'out of memory'}{system_hint(exc)}", FAILURE)
    except RuntimeError as exc:
        if str(exc) != _NO_THREAD:
            raise
        fail("the system allows no more threads: a limit on them, or on memory", FAILURE)
    if code == _INTERRUPTED:
        fail("interrupted", _INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)


def _bad_input() -> tuple[type[Exception], ...]:
    """Return the errors about what the user gave: a file, a setting, a name, too small a budget.

    It is called only after an error, since importing these takes longer than completing a name.
    """
    from models.errors import ModelError
    from pipeline.budget.errors import RefusedError
    from pipeline.execution.errors import InputError
    from pipeline.planning.plan import PlanError
    from server.errors import ServiceError
    from server.settings.settings import SettingsError
    from server.transport.listener import PortError

    return ModelError, PlanError, RefusedError, InputError, ServiceError, SettingsError, PortError


def _failures() -> tuple[type[Exception], ...]:
    from loader.errors import LoaderError
    from pipeline.devices.base import DeviceError
    from pipeline.execution.errors import EngineError

    return LoaderError, DeviceError, EngineError, MemoryError, OSError
