"""The process that serves, in an interpreter of its own where that saves memory (models/interpreter.py).

``python -m cli.serving DESCRIPTOR`` reads the arguments of the command line from the descriptor.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.process import run_process
from models.interpreter import replace

# Imported where they are used: before `run_process` Ctrl-C prints a traceback.
if TYPE_CHECKING:
    from server.serve import Report
    from server.settings.settings import Settings


@dataclass(frozen=True)
class Launch:
    """What is served, by the arguments of the command line; ``flags``, ``config``: as of ``load_settings``.

    ``sources``: names of models and the files that they were compiled from. For each of them the command
    that asks it is printed.
    """

    flags: Mapping[str, Any]
    config: str | None
    sources: Sequence[tuple[str, str]] = ()

    def settings(self) -> "Settings":
        """Return the settings; raises as ``load_settings``."""
        from server.settings.settings import load_settings

        return load_settings(self.flags, None if self.config is None else Path(self.config))


def start_server(launch: Launch) -> None:
    """Serve ``launch`` until a signal comes; the service manager is notified of a failure."""
    descriptor = os.memfd_create("layerstream")
    with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
        json.dump(asdict(launch), file)
        file.flush()
        file.seek(0)
        words = sys.argv[1:]  # for who lists processes
        replace("cli.serving", str(descriptor), *words, descriptors=[descriptor])
    serve(launch)


def serve(launch: Launch) -> None:
    """Serve ``launch`` in this interpreter."""
    from models.runtime.heap import kept_imports
    from server.memory.process_memory import memory_limited
    from server.operation.service_manager import Notifier
    from server.settings.settings import warn_of_variables

    notifier = Notifier.from_environment(os.environ)
    try:
        settings = launch.settings()
        # Libraries take a while, and memory.
        notifier.status(f"starting{memory_limited()}")
        with kept_imports():
            from pipeline.budget.errors import RefusedError
            from server.operation import logs
            from server.operation.line_queue import never_wait
            from server.operation.starting import StartupError
            from server.serve import run as run_server

        never_wait()
        logs.configure(settings.log_format)
        warn_of_variables()
        try:
            run_server(settings, _report(settings, launch))
        except (RefusedError, StartupError) as exc:
            if enough := suffices(settings):
                exc.args = (f"{exc}; {enough}",)
                if isinstance(exc, StartupError):
                    several = len(exc.reasons) > 1
                    exc.reasons = (*exc.reasons, enough) if several else exc.args
            raise
    except Exception as exc:
        notifier.status(f"ended: {exc}")
        raise


def _report(settings: "Settings", launch: Launch) -> "Report | None":
    if not launch.sources:
        return None
    from cli.announcing import Announcer

    files = {name: Path(file) for name, file in launch.sources}
    return Announcer(settings, files, partial(suffices, settings))


def suffices(settings: "Settings") -> str:
    """Return which ``memory`` is enough for all models at once, where it is given and is less; else ""."""
    if settings.memory is None or settings.device != "cpu":
        return ""
    from contextlib import closing

    from cli.printing.sentences import typed
    from pipeline.devices.find import open_device
    from server.errors import NotFoundError
    from server.memory.process_memory import process_bytes
    from server.repository.survey import needed_for_all, survey

    try:
        with closing(open_device("cpu", settings.threads)) as device:
            models = survey(settings.repository, device, settings.models, settings.pin)
    except NotFoundError:
        return ""
    budget = needed_for_all(models, settings.activations)
    enough = budget + process_bytes(len(models), grpc=settings.grpc_port is not None)
    return f"--memory {typed(enough)} suffices for all" if enough > settings.memory else ""


def spare_imports() -> None:
    """Spare this process modules that libraries import, and nothing here uses: 2 MiB.

    FastAPI asks whether a model is one of Pydantic 1, and answers no where that cannot be imported.
    zoneinfo, which Pydantic imports, reads Python's build configuration for what a variable may say.
    """
    sys.modules["pydantic.v1"] = None  # type: ignore[assignment]
    os.environ.setdefault("PYTHONTZPATH", "/usr/share/zoneinfo")


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[1]), encoding="utf-8") as launched:
        launch = Launch(**json.load(launched))
    spare_imports()
    run_process(lambda: serve(launch))
