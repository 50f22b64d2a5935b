"""``layerstream serve``: the HTTP service. Its flags are the settings (server/settings/settings.py)."""

from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.serving import Launch, start_server
from server.settings.sources import flag
from server.settings.table import Setting, settings_table

#: Spellings that were flags once, and the settings that they give.
_OLD = {"model": "models"}


def serve(config: Path | None, **flags: Any) -> None:
    """Serve the packs of a repository over HTTP. All is inside one memory budget.

    A setting is a flag (--queue-limit 8), a variable (LAYERSTREAM_QUEUE_LIMIT=8)
    or a line of the file of --config (queue_limit = 8); the first of these wins.
    Sizes are written 64MiB, 24MB or in bytes.
    """
    start_server(Launch(given(flags), str(config) if config else None))


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
