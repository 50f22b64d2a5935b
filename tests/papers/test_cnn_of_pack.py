"""CNNs of packs: layers, windows and edges are those of the network that was compiled."""

from pathlib import Path

import pytest

from models.network.windows import Window
from models.packs.target import host_target
from papers.cnn.layers import Cnn, CnnLayer, Edge, GeometryError, Shape
from papers.cnn.of_pack import cnn_of_pack
from papers.dataflow.conversion import row_phases
from tests.examples import over
from tests.pipeline.execution.test_rows import CASES, compiled

# A CNN's layers and edges fit together, or it is refused.

LAYERS = tuple(CnnLayer(name, "relu", Shape(4, 5, 6)) for name in "abc")


def test_shapes_count_elements() -> None:
    assert (Shape(4, 5, 6).row_elements, Shape(4, 5, 6).elements) == (30, 120)


def test_readers() -> None:
    cnn = Cnn("n", LAYERS, (Edge(0, 1), Edge(0, 2), Edge(1, 2)))
    assert cnn.readers == ((1, 2), (2,), ())


@over(
    "layers, edges, said",
    [
        (LAYERS, (Edge(1, 0),), "1 -> 0"),
        (LAYERS, (Edge(1, 1),), "1 -> 1"),
        (LAYERS, (Edge(0, 3),), "0 -> 3"),
        (LAYERS, (Edge(-1, 2),), "-1 -> 2"),
        (LAYERS, (Edge(0, 1), Edge(0, 1)), "twice"),
        ((*LAYERS, LAYERS[0]), (), "'a'"),
    ],
)
def test_what_does_not_fit_is_refused(
    layers: tuple[CnnLayer, ...], edges: tuple[Edge, ...], said: str
) -> None:
    with pytest.raises(GeometryError, match=said):
        Cnn("n", layers, edges)


pytestmark = pytest.mark.skipif(host_target().block == 1, reason="no blocked layout here")


def read(name: str, folder: Path) -> Cnn:
    return cnn_of_pack(compiled(CASES[name], folder).manifest).cnn


def described(cnn: Cnn) -> list[tuple[str, Shape, list[tuple[int, Window, int | None]]]]:
    """Return each layer: operator, output, and what it reads through which window."""
    return [
        (
            layer.operator,
            layer.output,
            [
                (edge.source, edge.window or layer.window, edge.channels)
                for edge in cnn.edges
                if edge.target == number
            ],
        )
        for number, layer in enumerate(cnn.layers)
    ]


def test_windows_are_those_of_the_convolutions(tmp_path: Path) -> None:
    cnn = read("strides", tmp_path)
    made = [layer for layer in described(cnn) if layer[0] == "Conv"]
    assert [shape for _, shape, _ in made] == [Shape(7, 5, 32), Shape(3, 5, 32)]
    assert [[window for _, window, _ in reads] for _, _, reads in made] == [
        [Window(3, 2, before=1, behind=1)],
        [Window(3, 3, before=1, behind=1)],
    ]
    assert (cnn.layers[0].operator, cnn.layers[-1].operator) == ("input", "output")


def test_a_fused_sum_is_read_through_a_window_of_its_own(tmp_path: Path) -> None:
    cnn = read("residual", tmp_path)
    both = [reads for _, _, reads in described(cnn) if len(reads) == 2]
    assert both
    for reads in both:
        assert sorted(window.reach for _, window, _ in reads) == [1, 3]


def test_joins_and_splits_are_edges(tmp_path: Path) -> None:
    joined = described(read("joins", tmp_path))
    assert [len(reads) for _, _, reads in joined if len(reads) == 3]  # a, b and c
    (tmp_path / "splits").mkdir()
    parts = {
        channels
        for _, _, reads in described(read("splits", tmp_path / "splits"))
        for _, _, channels in reads
    }
    assert parts == {None, 32}


def test_what_runs_whole_needs_all_of_its_input(tmp_path: Path) -> None:
    found = cnn_of_pack(compiled(CASES["a value a channel"], tmp_path).manifest)
    phases = row_phases(found.cnn)
    for layer, operator, of_layer in zip(found.cnn.layers, found.operators, phases, strict=True):
        whole = operator is None and layer.operator != "input"
        assert len(of_layer) == (1 if whole else 13), layer


@pytest.mark.parametrize("name", ["another name of what was made", "shuffled channels", "enlarged"])
def test_every_layer_but_inputs_reads_another(name: str, tmp_path: Path) -> None:
    cnn = read(name, tmp_path)
    reading = {edge.target for edge in cnn.edges}
    for number, layer in enumerate(cnn.layers):
        assert (number in reading) == (layer.operator != "input")
        assert bool(cnn.readers[number]) == (layer.operator != "output")
