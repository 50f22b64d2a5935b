"""``layerstream serve``: the HTTP service. Its flags are the settings (server/settings/settings.py)."""

import os
from collections.abc import Callable
from inspect import Parameter, Signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from server.settings.settings import Settings, load_settings, warn_of_variables
from server.settings.sources import flag
from server.settings.table import Setting, settings_table

if TYPE_CHECKING:
    from server.serve import Report

#: Spellings that were flags once, and the settings that they give.
_OLD = {"model": "models"}


def serve(config: Path | None, **flags: Any) -> None:
    """Serve the packs of a repository over HTTP. All is inside one memory budget.

    A setting is a flag (--queue-limit 8), a variable (LAYERSTREAM_QUEUE_LIMIT=8)
    or a line of the file of --config (queue_limit = 8); the first of these wins.
    Sizes are written 64MiB, 24MB or in bytes.
    """
    serving(lambda: load_settings(given(flags), config))


def serving(settings_of: Callable[[], Settings], report: "Report | None" = None) -> None:
    """Serve as the settings say, and notify the service manager of a failure; ``report``: as of ``run``."""
    from models.runtime.heap import kept_imports
    from server.memory.process_memory import memory_limited
    from server.operation.service_manager import Notifier

    notifier = Notifier.from_environment(os.environ)
    try:
        settings = settings_of()
        # Libraries take a while, and memory.
        notifier.status(f"starting{memory_limited()}")
        with kept_imports():
            from pipeline.budget.errors import RefusedError
            from server.operation import logs
            from server.operation.line_queue import never_wait
            from server.operation.starting import StartupError
            from server.serve import run

        never_wait()
        logs.configure(settings.log_format)
        warn_of_variables()
        try:
            run(settings, report)
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


def suffices(settings: Settings) -> str:
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
            models = survey(settings.repository, device, settings.models)
    except NotFoundError:
        return ""
    budget = needed_for_all(models, settings.activations)
    enough = budget + process_bytes(len(models), grpc=settings.grpc_port is not None)
    return f"--memory {typed(enough)} suffices for all" if enough > settings.memory else ""


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given, each by its own name; what was given several times is a list."""
    for old, name in _OLD.items():
        older = flags.pop(old, None)
        flags[name] = [*(flags.get(name) or ()), *(older or ())]
    lists = {name: ",".join(value) for name, value in flags.items() if isinstance(value, list)}
    return {**flags, **{name: text or None for name, text in lists.items()}}


def parameters() -> list[Parameter]:
    """Return the parameters of ``serve``: all settings, and the file of them."""
    config = typer.Option(
        help="TOML file with settings: budget = '256MiB'. Variable: LAYERSTREAM_CONFIG.",
        metavar="FILE",
        rich_help_panel="Settings from a file",
    )
    return [
        *map(_parameter, settings_table()),
        *(_option(old, list[str], typer.Option(flag(old), hidden=True)) for old in _OLD),
        _option("config", Path, config),
    ]


def _parameter(item: Setting) -> Parameter:
    """Return the parameter of ``serve`` that gives a setting: a text, which Settings reads, or a switch."""
    option = typer.Option(
        item.flag,
        help=item.help,
        metavar=item.value or None,
        rich_help_panel=item.panel,
        show_default=False,
    )
    kind = list[str] if item.repeats else str
    return _option(item.name, kind if item.value else bool, option)


def _option(name: str, kind: Any, option: Any) -> Parameter:
    return parameter(name, Annotated[kind | None, option])


def parameter(name: str, annotation: Any, default: Any = None) -> Parameter:
    """Return a parameter of a command as Typer reads it; it is required where ``default`` is empty."""
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


serve.__signature__ = Signature(parameters())  # type: ignore[attr-defined]
