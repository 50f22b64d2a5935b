"""Applications written as files, such that reading gives the same again."""

import json
from collections.abc import Iterator, Sequence

from models.network.windows import Window
from papers.applications.application import Application
from papers.applications.application_files import ApplicationFile
from papers.cnn.layers import Cnn, Edge


def written_application(file: ApplicationFile) -> str:
    """Return the text of a file that is read as ``file``."""
    application = file.application
    lines = [
        f"name = {_text(application.name)}",
        f"element_bytes = {application.element_bytes}",
        f"parameter_bytes = {application.parameter_bytes}",
    ]
    groups = [
        [_partition_name(application, number) for number in sorted(group)]
        for group in application.together
    ]
    lines += [f"together = {_text(groups)}"] if groups else []
    for number, (cnn, pack) in enumerate(zip(application.cnns, file.packs, strict=True)):
        lines += ["", "[[model]]", f"name = {_text(cnn.name)}"]
        lines += (
            ["layers = [", *_layer_lines(cnn), "]"]
            if pack is None
            else [f"pack = {_text(str(pack))}"]
        )
        own = [application.partitions[at] for at in application.of_cnn(number)]
        partitions = [[_step(cnn, step) for step in partition.schedule] for partition in own]
        lines += [f"partitions = {_text(partitions)}"]
    return "\n".join(lines) + "\n"


def _step(cnn: Cnn, step: Sequence[int]) -> str | list[str]:
    names = [cnn.layers[layer].name for layer in step]
    return names[0] if len(names) == 1 else names


def _partition_name(application: Application, number: int) -> str:
    cnn = application.partitions[number].cnn
    return f"{application.cnns[cnn].name}/{application.of_cnn(cnn).index(number) + 1}"


def _layer_lines(cnn: Cnn) -> Iterator[str]:
    for number, layer in enumerate(cnn.layers):
        shape = layer.output
        fields = {
            "name": layer.name,
            "operator": layer.operator,
            "output": [shape.channels, shape.height, shape.width],
            "reads": [_read(cnn, edge) for edge in cnn.edges if edge.target == number],
            **_window(layer.window),
            "seconds": layer.seconds,
            "parameters": layer.parameters,
        }
        yield f"  {_text(fields)},"


def _read(cnn: Cnn, edge: Edge) -> str | dict[str, object]:
    name = cnn.layers[edge.source].name
    if edge.window is None and edge.channels is None:
        return name
    window = {} if edge.window is None else {"window": _window(edge.window)}
    channels = {} if edge.channels is None else {"channels": edge.channels}
    return {"layer": name, **window, **channels}


def _window(window: Window) -> dict[str, object]:
    return {
        "kernel": window.kernel,
        "stride": window.stride,
        "above": window.before,
        "below": window.behind,
        "dilation": window.dilation,
        "factor": window.factor,
    }


def _text(value: object) -> str:
    """Return a string, a number, lists or tables of them as TOML, in one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_text(item)}' for key, item in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
