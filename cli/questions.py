"""For each model the command that asks it over HTTP, made of what the model is, to copy and to run."""

import json
import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from cli.model_sources import RECIPES
from models import photographs
from models.images.preprocess import PICTURE_RANK
from models.network.fields import STRINGS
from models.packs.manifest import Manifest
from models.packs.records.ports import Port
from server.codec.datatypes import datatype
from server.settings.settings import Settings

#: Values that a line shows; more come out of /dev/zero.
_SHOWN_VALUES = 16
#: Of inputs that pictures may become.
_CHANNELS = {1, 3}
#: Of a string as raw tensors have it, its length alone: an empty one.
_STRING_BYTES = 4
#: Where none lies beside the model: one that no model knows better than others.
_ANY_PICTURE = Path(photographs.__file__).with_name("coffee.jpg")
_ANY_TEXT = '{"text": "A cat sits on the mat."}'
_PICTURES = (".jpg", ".jpeg", ".png", ".webp")


def question(manifest: Manifest, name: str, place: str, settings: Settings, source: Path) -> str:
    """Return the command that asks the model ``name`` of ``manifest``, which ``place`` serves.

    A text or a photograph where it takes one, the picture next to ``source``, its file; else zeros.
    """
    model = f"{_base(place)}/v2/models/{name}"
    curl = ["curl", "-fsS", *_access(place, settings)]
    if manifest.verb is not None:
        picture = _picture_beside(source)
        known = "" if picture else "  # any photograph: put one of what it knows in its place"
        body = f"@{picture or _ANY_PICTURE}"
        return shlex.join([*curl, "--data-binary", body, f"{model}:{manifest.verb}"]) + known
    if manifest.text_verb is not None:
        return shlex.join([*curl, "-d", _ANY_TEXT, f"{model}:{manifest.text_verb}"])
    ports = manifest.required_inputs
    return _with_tensors(curl, ports, model) + recipe_hint(ports, source)


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


def recipe_hint(ports: Sequence[Port], source: Path) -> str:
    """Return a hint at the recipe file for a network that seems to take photographs but has none, or ""."""
    shapes = [port.shape for port in ports if port.dtype == "float32"]
    if source.suffix != ".onnx" or len(ports) != 1 or list(map(len, shapes)) != [PICTURE_RANK]:
        return ""
    (_, first, second, last) = shapes[0]
    if not _CHANNELS & {first, last}:
        return ""
    is_last = first not in _CHANNELS
    channels, height, width = (last, first, second) if is_last else (first, second, last)
    keys = [
        f"size = [{width}, {height}]",
        *(['layout = "NHWC"'] if is_last else []),
        *(['color = "GRAY"'] if channels == 1 else []),
    ]
    recipe = f"{source.stem}{RECIPES['preprocess']}"
    return (
        f"  # to send photographs say in {recipe} next to it how they become its input, a key a line: "
        f"{', '.join(keys)}, and mean, std or scale as it was trained with (docs/how-to/models.md)"
    )


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
