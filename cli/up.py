"""``layerstream up``: from files of models to a service, in one command.

While a file is compiled this process waits, and the compiler lacks the memory that it holds. So it imports
here what settings and sources take alone, and the service when all packs are made.
"""

import os
import signal
from functools import partial
from inspect import Parameter, Signature
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.arguments import Check, repeated, shapes_of
from cli.model_sources import (
    RECIPES,
    REPOSITORY,
    FailedCommandError,
    check_sources,
    is_new,
    isa_of,
    pack_of,
    sources_of,
)
from cli.printing.output import lose_output_where_there_is_none, tell, warn
from cli.process import BAD_INPUT, FAILURE
from cli.serve import given, parameter, parameters
from cli.serving import Launch, start_server
from cli.source_records import Source
from models.errors import ModelError, printable
from models.packs.folders import clear_repository
from models.sizes import format_size
from pipeline.checking import Depth
from pipeline.execution.errors import InputError
from server.memory.process_memory import free_bytes, given_bytes, resolved_budget
from server.preflight import check_start
from server.settings.settings import load_settings

_OURS = ("repository", "models", "model")


def up(
    paths: list[Path],
    repository: Path | None,
    shape: list[str] | None,
    keep_input: list[str] | None,
    without_output: list[str] | None,
    config: Path | None,
    check: Depth,
    **flags: Any,
) -> None:
    """Compile what is new, and serve it. It takes ONNX files, CFG and WEIGHTS of Darknet, folders of packs.

    --memory is for all of the serving process; without it, half of what is free. What compiling takes is
    beside it, in a process of its own before anything is served. Packs are kept beside the first file, or
    in --repository, and made again only where a file is another. Models that do not fit together take
    turns (--budget-policy evict-lru).
    All settings of `serve` are taken.
    """
    lose_output_where_there_is_none()
    recipes = {name: file for name in RECIPES if (file := flags.pop(name)) is not None}
    words = repeated(shape=shape, keep_input=keep_input, without_output=without_output)
    sources = sources_of(paths, recipes, words)
    folder = repository or paths[0].absolute().parent / REPOSITORY
    named = {"repository": str(folder), "models": ",".join(source.name for source in sources)}
    flags = {**given(flags), **named}
    settings = load_settings(flags, config, partial(_half_of_free_bytes, flags))
    if "budget_policy" not in settings.model_fields_set:
        flags["budget_policy"] = "evict-lru"
    signal.signal(signal.SIGTERM, _exit)  # the process that compiles ends, too
    # Looked at first: compiling would be in vain.
    shapes_of(shape)
    check_sources(sources, folder)
    given_bytes(settings)
    if any(is_new(source, folder) for source in sources):  # else what would suffice is said, too
        resolved_budget(settings, lambda: len(sources))
    check_start(settings, inherits="LISTEN_FDS" in os.environ)
    for path in clear_repository(folder):
        tell(f"{path}: removed: left by a process that was killed")
    isa = isa_of(settings.device)
    failures = {source.name: _failure(source, folder, isa, check) for source in sources}
    compiled = [source for source in sources if failures[source.name] is None]
    if not compiled:  # a service manager tries a failure again, bad input never
        raise typer.Exit(FAILURE if FAILURE in failures.values() else BAD_INPUT)
    flags["models"] = ",".join(source.name for source in compiled)
    files = tuple((source.name, str(source.files[0])) for source in compiled)
    start_server(Launch(flags, None if config is None else str(config), files))


def _half_of_free_bytes(flags: dict[str, Any]) -> int:
    """Return half of what is free, and add it to ``flags``: later there may be less."""
    n_bytes = free_bytes() // 2
    if n_bytes:
        flags["memory"] = f"{n_bytes}B"
        tell(f"--memory: not given, so half of what is free is taken, {format_size(n_bytes)}")
    return n_bytes


def _failure(source: Source, repository: Path, isa: str, check: Depth) -> int | None:
    """Compile ``source`` if it is new; return None, or the exit status of what keeps it from being served.

    That is printed; the others are served.
    """
    failure: Exception
    try:
        pack_of(source, repository, isa, check)
    except FailedCommandError as exc:
        failure, status = exc, exc.status
    except MemoryError as exc:
        failure, status = exc, FAILURE
    except (InputError, ModelError) as exc:
        failure, status = exc, BAD_INPUT
    else:
        return None
    if not isinstance(failure, FailedCommandError):  # the command has said it
        warn(str(failure))
    print(printable(f"# {source.name} is not served: {failure}"), flush=True)
    return status


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(os.EX_OK)


def _signature() -> Signature:
    paths = typer.Argument(
        metavar="MODEL...",
        help="F.onnx, CFG WEIGHTS, or the folder of a pack: REPOSITORY/NAME.",
        show_default=False,
    )
    folder = typer.Option(
        help=f"Where packs are kept. Default: {REPOSITORY} beside the first MODEL.",
        metavar="FOLDER",
        show_default=False,
    )
    shape = typer.Option(
        help="Of the one ONNX file, as of `compile`: NAME=1,3,224,224, repeatable.", metavar="SHAPE"
    )
    named = {
        name: typer.Option(help=f"Of the one ONNX file, as of `compile`: {what}.", metavar="NAME")
        for name, what in (
            ("keep_input", "an input that looks like a weight, repeatable"),
            ("without_output", "an output that is left out, repeatable"),
        )
    }
    recipe = {
        name: typer.Option(
            help=f"Of the one ONNX file, as of `compile`: {what}. Default: F{RECIPES[name]} beside it.",
            metavar="FILE",
            show_default=False,
        )
        for name, what in zip(
            RECIPES,
            (
                "one label a line",
                "how a picture becomes its input (TOML)",
                "heads, anchors, classes (TOML)",
                "which output is a mask (TOML)",
                "which output is a vector (TOML)",
            ),
            strict=True,
        )
    }
    return Signature(
        [
            parameter("paths", Annotated[list[Path], paths], Parameter.empty),
            parameter("repository", Annotated[Path | None, folder]),
            *(parameter(name, Annotated[Path | None, recipe[name]]) for name in RECIPES),
            parameter("shape", Annotated[list[str] | None, shape]),
            *(
                parameter(name, Annotated[list[str] | None, option])
                for name, option in named.items()
            ),
            parameter("check", Check, "full"),
            *(each for each in parameters() if each.name not in _OURS),
        ]
    )


up.__signature__ = _signature()  # type: ignore[attr-defined]


if TYPE_CHECKING:
    pass
