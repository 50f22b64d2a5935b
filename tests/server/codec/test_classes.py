"""The classification extension: the best classes as text."""

from typing import Any

import numpy as np
import pytest

from server.codec.classes import best_classes


@pytest.mark.parametrize(
    ("scores", "count", "expected"),
    [
        (np.array([0.5, 2, 1], np.float32), 2, ["2.0:1", "1.0:2"]),
        (np.array([[0.1, 0.9]], np.float32), 1, [["0.9:1"]]),
        (np.array([[1, 2], [4, 3]]), 9, [["2:1", "1:0"], ["4:0", "3:1"]]),
        (np.array([3, 3, 3], np.uint8), 2, ["3:0", "3:1"]),
        (np.array([0, 255, -0], np.uint8), 3, ["255:1", "0:0", "0:2"]),
        (np.array([-128, 127], np.int8), 2, ["127:1", "-128:0"]),
        (np.array([np.nan, -np.inf, 1, np.inf]), 4, ["inf:3", "1.0:2", "nan:0", "-inf:1"]),
        (np.array(7.0), 1, ["7.0:0"]),
        (np.arange(8.0).reshape(1, 2, 2, 2), 1, [["7.0:7"]]),
        (np.empty((2, 0)), 3, [[], []]),
        (np.empty((0, 2)), 3, []),
        (np.array([2**53 + 1, 2**53]), 2, ["9007199254740993:0", "9007199254740992:1"]),
    ],
)
def test_best_first(scores: Any, count: int, expected: list[Any]) -> None:
    assert best_classes(scores, count).tolist() == expected


def test_labels_as_far_as_they_go() -> None:
    found = best_classes(np.array([[1.0, 3, 2]]), 3, ["cat", "a:b"])
    assert found.tolist() == [["3.0:1:a:b", "2.0:2", "1.0:0:cat"]]


def test_the_score_is_the_output_to_the_bit() -> None:
    scores = np.random.default_rng(0).standard_normal(100).astype(np.float32)
    for line in best_classes(scores, 100).tolist():
        value, index = line.split(":")
        assert np.float32(value) == scores[int(index)]
