"""``layerstream up``: from files of models to a service, in one command."""

import json
import math
import os
import shlex
import signal
import threading
from collections.abc import Sequence
from inspect import Signature
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.model_sources import RECIPES, Source, isa_of, pack_of, sources_of
from cli.serve import given, parameter, parameters, serving, suffices
from models import photographs
from models.errors import printable
from models.images.preprocess import PICTURE_RANK
from models.network.fields import STRINGS
from models.packs.manifest import Manifest
from models.packs.records.ports import Port
from server.codec.datatypes import datatype
from server.memory.process_memory import given_bytes
from server.settings.settings import Settings, load_settings
from server.transport.listener import listen

#: The folder of packs beside the first file; a hidden one has no model's name.
_REPOSITORY = ".layerstream"
_OURS = ("repository", "models", "model")


def up(
    paths: list[Path],
    repository: Path | None,
    shape: list[str] | None,
    config: Path | None,
    **flags: Any,
) -> None:
    """Compile what is new, and serve it: files of ONNX, CFG and WEIGHTS of Darknet, folders of packs.

    --memory is for all of the serving process. What compiling takes is beside it, in a process of its own
    before anything is served. Packs are kept beside the first file, or in --repository, and made again only
    where a file is another. Models that do not fit together take turns (--budget-policy evict-lru).
    All settings of `serve` are taken.
    """
    recipes = {name: file for name in RECIPES if (file := flags.pop(name)) is not None}
    sources = sources_of(paths, recipes, shape or ())
    folder = repository or (paths[0].resolve().parent / _REPOSITORY)
    named = {"repository": str(folder), "models": ",".join(source.name for source in sources)}
    settings = load_settings({**given(flags), **named}, config)
    if "budget_policy" not in settings.model_fields_set:
        settings = settings.model_copy(update={"budget_policy": "evict-lru"})
    signal.signal(signal.SIGTERM, _exit)  # the process that compiles ends, too
    # Looked at first: compiling would be in vain.
    given_bytes(settings)
    if settings.unix_socket is None and "LISTEN_FDS" not in os.environ:
        listen(settings.host, settings.port).close()
    isa = isa_of(settings.device)
    for source in sources:
        pack_of(source, folder, isa)
    serving(lambda: settings, _Told(settings, sources))


class _Told:
    """Prints once for each model the command that asks it, as soon as it answers, or why it does not."""

    def __init__(self, settings: Settings, sources: Sequence[Source]) -> None:
        self._settings = settings
        self._waiting = {source.name: source for source in sources}
        self._turn = threading.Lock()  # one look may go on while the last one begins

    def __call__(self, context: "Context", place: str, all_were_tried: bool) -> None:
        with self._turn:
            for entry in context.repository.entries():
                if entry.name in self._waiting and (entry.answers or all_were_tried):
                    _say(self._settings, entry, place, self._waiting.pop(entry.name))
            absent = all_were_tried and not all(
                entry.answers for entry in context.repository.entries()
            )
            if absent and (enough := suffices(self._settings)):
                print(f"# {enough}", flush=True)


def _say(settings: Settings, entry: "Entry", place: str, source: Source) -> None:
    from models.packs.pack import read_pack
    from server.failures import FAILURES
    from server.repository.entry import Serving

    try:
        if entry.answers:
            state = entry.condition
            if isinstance(state, Serving):
                manifest = state.prepared.pack.manifest
            else:  # it is evicted, so only its file is there
                manifest = read_pack(settings.repository / entry.name).manifest
            line = question(manifest, entry.name, place, settings, source.files[0])
        else:
            line = f"# {entry.name} is not served: {entry.reason}"
    except FAILURES as exc:
        line = f"# {entry.name}: {exc}"
    print(printable(line), flush=True)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(os.EX_OK)


def _signature() -> Signature:
    paths = typer.Argument(
        metavar="MODEL...",
        help="F.onnx, CFG WEIGHTS, or the folder of a pack: REPOSITORY/NAME.",
        show_default=False,
    )
    folder = typer.Option(
        help=f"Where packs are kept. Default: {_REPOSITORY} beside the first MODEL.",
        metavar="FOLDER",
        show_default=False,
    )
    shape = typer.Option(
        help="Of the one ONNX file, as of `compile`: NAME=1,3,224,224, repeatable.", metavar="SHAPE"
    )
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
            ),
            strict=True,
        )
    }
    return Signature(
        [
            parameter("paths", Annotated[list[Path], paths], required=True),
            parameter("repository", Annotated[Path | None, folder]),
            *(parameter(name, Annotated[Path | None, recipe[name]]) for name in RECIPES),
            parameter("shape", Annotated[list[str] | None, shape]),
            *(each for each in parameters() if each.name not in _OURS),
        ]
    )


up.__signature__ = _signature()  # type: ignore[attr-defined]


# A line for each model that asks it over HTTP, made of what the model is, to copy and to run.

#: Values that a line shows; more come out of /dev/zero.
_SHOWN_VALUES = 16
#: Of inputs that pictures may become.
_CHANNELS = {1, 3}
#: Of a string as raw tensors have it, its length alone: an empty one.
_STRING_BYTES = 4
#: Where none lies beside the model: one that no model knows better than others.
_ANY_PICTURE = Path(photographs.__file__).with_name("coffee.jpg")
_PICTURES = (".jpg", ".jpeg", ".png", ".webp")


def question(manifest: Manifest, name: str, place: str, settings: Settings, source: Path) -> str:
    """Return the command that asks the model ``name`` of ``manifest``, which ``place`` serves.

    A photograph where it takes one, that which lies beside ``source``, its file; else zeros.
    """
    model = f"{_base(place)}/v2/models/{name}"
    curl = ["curl", "-fsS", *_access(place, settings)]
    if manifest.verb is not None:
        picture = _picture_beside(source)
        known = "" if picture else "  # any photograph: put one of what it knows in its place"
        body = f"@{picture or _ANY_PICTURE}"
        return shlex.join([*curl, "--data-binary", body, f"{model}:{manifest.verb}"]) + known
    ports = manifest.required_inputs
    return _with_tensors(curl, ports, model) + _recipe_missing(ports, source)


def _with_tensors(curl: Sequence[str], ports: Sequence[Port], model: str) -> str:
    """Return the command that sends zeros for ``ports``."""
    if sum(math.prod(port.shape) for port in ports) <= _SHOWN_VALUES:
        body = json.dumps({"inputs": [_port(port) | {"data": _zeros(port)} for port in ports]})
        return shlex.join([*curl, "--data-binary", body, f"{model}/infer"])
    head = json.dumps(
        {
            "inputs": [
                _port(port) | {"parameters": {"binary_data_size": _raw_bytes(port)}}
                for port in ports
            ]
        }
    )
    zeros = f"head -c {sum(map(_raw_bytes, ports))} /dev/zero"
    header = ("-H", f"Inference-Header-Content-Length: {len(head)}", "--data-binary", "@-")
    asked = shlex.join([*curl, *header, f"{model}/infer"])
    return f"{{ printf %s {shlex.quote(head)}; {zeros}; }} | {asked}"


def _recipe_missing(ports: Sequence[Port], source: Path) -> str:
    """Return a hint at the recipe file for a network that seems to take photographs but has none."""
    shapes = [port.shape for port in ports if port.dtype == "float32"]
    if source.suffix != ".onnx" or len(ports) != 1 or list(map(len, shapes)) != [PICTURE_RANK]:
        return ""
    if not _CHANNELS & {shapes[0][1], shapes[0][-1]}:
        return ""
    recipe = f"{source.stem}{RECIPES['preprocess']}"
    return f"  # to send photographs say in {recipe} beside it how they become its input"


def _picture_beside(source: Path) -> Path | None:
    """Return a picture in the folder of ``source``, one with the same name if there is one."""
    pictures = [
        each for each in source.resolve().parent.iterdir() if each.suffix.lower() in _PICTURES
    ]
    return min(pictures, key=lambda each: (each.stem != source.stem, each.name), default=None)


def _base(place: str) -> str:
    if place.startswith("unix:"):
        return "http://localhost"
    return place.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _access(place: str, settings: Settings) -> list[str]:
    """Return the options of curl that let it in."""
    options = ["--unix-socket", place.removeprefix("unix:")] if place.startswith("unix:") else []
    if place.startswith("https:"):
        options.append("-k")  # the certificate's name may be another than this address
    return [*options, "-H", "Authorization: Bearer KEY"] if settings.keys else options


def _port(port: Port) -> dict[str, object]:
    return {"name": port.name, "datatype": datatype(port.dtype), "shape": list(port.shape)}


def _zeros(port: Port) -> list[object]:
    zero: object = {"bool": False, STRINGS: ""}.get(port.dtype, 0)
    return [zero] * math.prod(port.shape)


def _raw_bytes(port: Port) -> int:
    if port.dtype == STRINGS:
        return _STRING_BYTES * math.prod(port.shape)
    return port.n_bytes


if TYPE_CHECKING:
    from server.context import Context
    from server.repository.entry import Entry
