"""What ``bench peers`` calls contenders, and which peer is the best."""

import pytest

from pipeline.benchmark.comparison import best_of
from pipeline.benchmark.ours import StreamedArchitecture
from pipeline.peers import ONNXRUNTIME, OPENVINO


def test_the_best_peer_is_the_fastest_of_them() -> None:
    assert best_of({ONNXRUNTIME: 2.0, OPENVINO: 1.0, "pre": 0.5}) == OPENVINO
    assert best_of({ONNXRUNTIME: 2.0, "pre": 0.5}) == ONNXRUNTIME
    assert best_of({"pre": 0.5}) is None


@pytest.mark.parametrize(
    ("way", "label"),
    [
        (StreamedArchitecture("pre"), "pre"),
        (StreamedArchitecture("auto", 5), "auto@5%"),
        (StreamedArchitecture("auto", 2.5), "auto@2.5%"),
    ],
)
def test_ways_have_names(way: StreamedArchitecture, label: str) -> None:
    assert way.label == label
