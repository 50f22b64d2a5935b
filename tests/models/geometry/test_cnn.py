"""A CNN's layers and edges fit together, or it is refused."""

import pytest

from models.geometry.cnn import Cnn, CnnLayer, Edge, GeometryError, Shape

LAYERS = tuple(CnnLayer(name, "relu", Shape(4, 5, 6)) for name in "abc")


def test_shapes_count_elements() -> None:
    assert (Shape(4, 5, 6).row_elements, Shape(4, 5, 6).elements) == (30, 120)


def test_neighbours() -> None:
    cnn = Cnn("n", LAYERS, (Edge(0, 1), Edge(0, 2), Edge(1, 2)))
    assert cnn.inputs == ((), (0,), (0, 1))
    assert cnn.readers == ((1, 2), (2,), ())


@pytest.mark.parametrize(
    ("layers", "edges", "said"),
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
