"""Applications drawn by hypothesis, and the paper's worked example."""

from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from models.network.windows import Window
from papers.applications.application import Application, Partition, one_by_one
from papers.applications.application_files import read_application
from papers.applications.schedule import ROWS
from papers.cnn.layers import Cnn, CnnLayer, Edge, Shape

EXAMPLE = Path(__file__).parents[3] / "docs/research/applications/example.toml"

_WINDOWS = [
    Window(),
    Window(3, before=1, behind=1),
    Window(3, 2, before=1, behind=1),
    Window(2, 2),
    Window(5, behind=4),
    Window(3, dilation=2, before=2, behind=2),
    Window(factor=2),
]


class NoPacks:
    """For files whose layers are written down."""

    def cnn(self, pack: Path, name: str) -> Cnn:
        raise AssertionError(f"{name}: {pack}")

    def starts(self, name: str, workers: int) -> Sequence[int]:
        raise AssertionError(f"{name}: {workers} workers")


def example() -> Application:
    """Return the application of seed 000, Section 2.3."""

    return read_application(EXAMPLE, NoPacks()).application


@st.composite
def cnns(draw: st.DrawFn, name: str = "cnn", most: int = 7) -> Cnn:
    """Draw a CNN: a chain with windows, and some additions to earlier layers of the same height."""
    layers = [CnnLayer("l0", "data", Shape(draw(st.integers(3, 20)), draw(st.integers(1, 3)), 2))]
    edges = []
    for number in range(1, draw(st.integers(2, most))):
        source = number - 1 if draw(st.booleans()) else draw(st.integers(0, number - 1))
        height = layers[source].output.height
        window = draw(st.sampled_from(_WINDOWS))
        made = window.factor * (
            (height + window.before + window.behind - window.reach) // window.stride + 1
        )
        if made < 1 or made > 40:
            window, made = Window(), height
        edges.append(Edge(source, number))
        edges += [
            Edge(other, number, Window())
            for other in range(number)
            if other != source and layers[other].output.height == made and draw(st.booleans())
        ]
        layers.append(CnnLayer(f"l{number}", "op", Shape(made, draw(st.integers(1, 3)), 3), window))
    return Cnn(name, tuple(layers), tuple(edges))


@st.composite
def applications(draw: st.DrawFn) -> Application:
    """Draw an application of one to three CNNs, some in partitions, some together."""
    found = tuple(draw(cnns(f"cnn{number}")) for number in range(draw(st.integers(1, 3))))
    partitions: list[Partition] = []
    together: list[frozenset[int]] = []
    for number, cnn in enumerate(found):
        count = len(cnn.layers)
        cuts = sorted(draw(st.sets(st.integers(1, count - 1), max_size=2))) if count > 1 else []
        own = []
        for start, end in zip([0, *cuts], [*cuts, count], strict=True):
            own.append(len(partitions))
            partitions.append(one_by_one(number, range(start, end)))
        if len(own) > 1 and draw(st.booleans()):
            together.append(frozenset(own))
    firsts = [min(i for i, p in enumerate(partitions) if p.cnn == n) for n in range(len(found))]
    if len(found) > 1 and draw(st.booleans()):
        together.append(frozenset(firsts[:2]))
    return Application("drawn", found, tuple(partitions), tuple(together))


@st.composite
def chromosomes(draw: st.DrawFn, application: Application) -> tuple[int, ...]:
    """Draw rows at a time for each layer."""
    count = sum(len(cnn.layers) for cnn in application.cnns)
    return tuple(draw(st.lists(st.sampled_from(ROWS), min_size=count, max_size=count)))
