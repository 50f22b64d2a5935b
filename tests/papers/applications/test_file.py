"""Applications as files: read as they were written, or refused in one line that names file and field."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given

from models.errors import ModelError
from models.network.windows import Window
from papers.applications.application import Application, ApplicationError, Partition, one_by_one
from papers.applications.application_files import ApplicationFile, read_application, runs_at_once
from papers.cnn.layers import Cnn, CnnLayer, Edge, Shape
from tests.examples import over
from tests.papers.applications.drawn import NoPacks, applications


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


PACK = Cnn(
    "packed", (CnnLayer("a..b", "op", Shape(2, 2, 2)), CnnLayer("c", "op", Shape(2, 2, 2))), ()
)
LAYERS = """
[[model]]
name = "m"
layers = [{ name = "a", output = [1, 8, 8] }, { name = "b", output = [1, 8, 8] }]
"""


class Packed(NoPacks):
    """Every pack has the same two layers; of two workers each has one."""

    def cnn(self, pack: Path, name: str) -> Cnn:
        return Cnn(name, PACK.layers, PACK.edges)

    def starts(self, name: str, workers: int) -> Sequence[int]:
        assert workers == 2
        return (1,)


def read(path: Path, text: str) -> ApplicationFile:
    path.write_text(text, "utf-8")
    return read_application(path, Packed())


@given(application=applications())
def test_files_round_trip(
    application: Application, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("file") / "app.toml"
    file = ApplicationFile(application, (None,) * len(application.cnns))
    assert read(path, written_application(file)) == file


def test_packs_and_odd_names_round_trip(tmp_path: Path) -> None:
    layers = tuple(CnnLayer(name, "\x7f\u2028", Shape(2, 3, 4)) for name in ('"', "a..b", "\t\\"))
    cnn = Cnn("m/2", layers, (Edge(0, 2),))
    partitions = (Partition(0, ((0, 1),)), Partition(0, ((2,),)), one_by_one(1, (0, 1)))
    application = Application(
        "é", (cnn, Packed().cnn(tmp_path, "p")), partitions, (frozenset({0, 1, 2}),), 1, 2
    )
    file = ApplicationFile(application, (None, tmp_path / "p"))
    text = written_application(file)
    assert read(tmp_path / "app.toml", text) == file
    assert written_application(read(tmp_path / "app.toml", text)) == text


def test_names_of_models_mean_all_their_partitions(tmp_path: Path) -> None:
    two = LAYERS + 'partitions = [["a"], ["b"]]\n' + LAYERS.replace('"m"', '"n"')
    file = read(tmp_path / "app.toml", 'together = [["m"], ["m/2", "n"]]\n' + two)
    assert file.application.together == (frozenset({0, 1}), frozenset({1, 2}))
    assert file.application.is_pipelined(0)


def test_ranges_of_layers(tmp_path: Path) -> None:
    text = LAYERS + 'partitions = [["a..b"]]'
    assert read(tmp_path / "app.toml", text).application.partitions == (one_by_one(0, (0, 1)),)


@over(
    "window, height",
    [
        ("kernel = 3, stride = 2", 3),
        ("kernel = 3, stride = 2, below = 1", 4),  # formats that round up read beyond the end
        ("below = -3", 5),  # formats that crop
        ("kernel = 3, dilation = 2, above = 2, below = 2", 8),
        ("factor = 2", 16),
        ("kernel = 8", 5),  # it reads all before its first row
    ],
)
def test_heights_follow_from_windows(tmp_path: Path, window: str, height: int) -> None:
    text = LAYERS.replace('"b", output = [1, 8, 8]', f'"b", output = [1, {height}, 8], {window}')
    (cnn,) = read(tmp_path / "app.toml", text).application.cnns
    assert cnn.layers[1].output.height == height


def test_a_model_with_workers_is_cut_by_the_planner(tmp_path: Path) -> None:
    text = '[[model]]\nname = "m"\npack = "p"\nworkers = 2\n'
    application = read(tmp_path / "app.toml", text).application
    assert application.partitions == (one_by_one(0, (0,)), one_by_one(0, (1,)))
    assert application.is_pipelined(0)
    assert runs_at_once(tmp_path / "app.toml")


@over(
    "text, at_once",
    [
        (LAYERS, False),
        (LAYERS + 'partitions = [["a"], ["b"]]', False),
        ('together = [["m"]]\n' + LAYERS, False),
        ('together = [["m"]]\n' + LAYERS + 'partitions = [["a"], ["b"]]', True),
        ('together = [["m/1", "m/2"]]\n' + LAYERS + 'partitions = [["a"], ["b"]]', True),
    ],
)
def test_what_runs_at_once_is_known_before_packs_are_opened(
    tmp_path: Path, text: str, at_once: bool
) -> None:
    path = tmp_path / "app.toml"
    application = read(path, text).application
    assert runs_at_once(path) == at_once == application.is_pipelined(0)


@over(
    "text, said",
    [
        ("", "an application of no model"),
        (LAYERS + LAYERS, "model 'm' is there twice"),
        ('[[model]]\nname = "m"', "model 'm' has neither pack nor layers"),
        (LAYERS + 'pack = "p"', "model 'm' has pack and layers"),
        (
            '[[model]]\nname = "m"\npack = "p"\n[[model]]\nname = "n"\npack = "x/../p"',
            "model 'n': pack x/../p is there twice",
        ),
        (LAYERS + 'partitions = [["a"]]', "m: layer 'b' is in no partition"),
        (LAYERS + 'partitions = [["a", "b"], ["b"]]', "m: layer 'b' is in two partitions"),
        (LAYERS + 'partitions = [["b"], ["a"]]', "m: 'b' runs before 'a', which it reads"),
        (LAYERS + 'partitions = [["a..c"]]', "m: partitions: there is no layer 'c'"),
        (LAYERS + 'partitions = [["a", "b"], []]', "m: a partition has no layers"),
        ('together = [["m/2"]]\n' + LAYERS, "together: 'm/2' is no model"),
        ('together = [["x"]]\n' + LAYERS, "together: 'x' is no model"),
        (LAYERS.replace("1, 8, 8", "1, 8", 1), "model 'm': layer 'a': output 3: missing"),
        (LAYERS.replace("1, 8, 8", "1, 0, 8", 1), "model 'm': layer 'a': output 2: below 1: 0"),
        (LAYERS.replace('"b", ', '"b", reads = ["z"], '), "m: 'b' reads 'z', which is no layer"),
        (LAYERS.replace('"b", ', '"a", '), "m: two layers are called 'a'"),
        (LAYERS.replace('"b", ', '"b", colour = 1, '), "model 'm': layer 'b': colour: no such key"),
        (LAYERS.replace('"a", ', '"a", reads = ["b"], '), "does not lead from a layer to a later"),
        (
            LAYERS.replace('"b", ', '"b", seconds = 1e308, '),
            "model 'm': layer 'b': seconds: above 1000000.0: 1e+308",
        ),
        (
            LAYERS.replace('"b", ', f'"b", parameters = {10**20}, '),
            "model 'm': layer 'b': parameters: above 2",
        ),
        (LAYERS.replace("1, 8, 8", "1, 4294967296, 8"), "more than 2,000,000"),
        (f'together = [["m/{5000 * "1"}"]]\n' + LAYERS, "is no model, and no partition"),
        (
            LAYERS.replace('"b", ', '"b", stride = 2, '),
            "m: layer 'b' has a height of 8, but its window makes 4 of the 8 rows of 'a'",
        ),
        (
            LAYERS.replace('"b", ', '"b", reads = [{ layer = "a", rows = 2 }], '),
            "read 1: rows: no such",
        ),
        (LAYERS.replace('"b", ', '"b", reads = [3], '), "reads 1: not a text: 3, not a table: 3"),
        (LAYERS.replace('"m"', "7"), "model 1: name: not a text: 7"),
        ('together = "m"\n' + LAYERS, ":1: together: not a list: 'm'"),
        (LAYERS + "workers = 2", "model 'm' has workers and layers written down"),
        (
            '[[model]]\nname = "m"\npack = "p"\nworkers = 2\npartitions = [["c"]]',
            "model 'm' has workers and partitions",
        ),
        ("name = ", ":1: not TOML"),
    ],
)
def test_what_is_no_application_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "app.toml"
    with pytest.raises(ModelError) as caught:
        read(path, text)
    message = str(caught.value)
    assert str(path) in message
    assert said in message
    assert "\n" not in message
    assert len(message) < 400


@over(
    "partitions, together, said",
    [
        ([((0,),), ((1,),)], [frozenset({5})], "no partition 5"),
        ([((0, 7),), ((1,),)], [], "no layer 7"),
        ([((0,),), ((1,),), ((2,),)], [frozenset({0, 1})], "some of its partitions run at once"),
    ],
)
def test_what_only_code_can_get_wrong(
    partitions: list[tuple[tuple[int, ...], ...]], together: list[frozenset[int]], said: str
) -> None:
    layers = tuple(CnnLayer(str(number), "op", Shape(2, 2, 2)) for number in range(len(partitions)))
    own = tuple(Partition(0, steps) for steps in partitions)
    with pytest.raises(ApplicationError, match=said):
        Application("x", (Cnn("m", layers, ()),), own, tuple(together))
