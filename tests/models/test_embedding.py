"""The vector of a text or a picture: pooling, length, and recipes that do not fit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.embedding import Embedding, Pooling, embedding_fault, read_embedding
from models.errors import ModelError
from tests.examples import over

TOKENS = np.array([[[1, -2], [3, 8], [5, 0], [70, 80]]], np.float32)
#: Three tokens of a text, then one that is none.
MASK = np.array([True, True, True, False])


@over(
    "case",
    {
        "mean": ("mean", MASK, [3, 2]),
        "cls": ("cls", MASK, [1, -2]),
        "last": ("last", MASK, [5, 0]),
        "max": ("max", MASK, [5, 8]),
        "padded before": ("last", MASK[::-1], [70, 80]),
        "first of a text that is padded before": ("cls", MASK[::-1], [3, 8]),
        "of all": ("max", None, [70, 80]),
    }.values(),
)
def test_the_tokens_of_a_text_are_pooled_to_one_vector(
    case: tuple[Pooling, Any, list[float]],
) -> None:
    pooling, mask, expected = case
    vector = Embedding(output="x", pooling=pooling).vector(TOKENS, mask)
    assert vector.dtype == np.float32
    assert vector.tolist() == expected
    assert not np.shares_memory(vector, TOKENS)


def test_a_vector_stays_as_it_is() -> None:
    output = np.arange(4, dtype=np.float16).reshape(1, 4, 1, 1)
    assert Embedding(output="x").vector(output).tolist() == [0, 1, 2, 3]


@given(st.integers(1, 6), st.integers(0, 99))
def test_a_shorter_vector_has_length_1_again(dimensions: int, seed: int) -> None:
    output = np.random.default_rng(seed).standard_normal((1, 6)).astype(np.float32)
    recipe = Embedding(output="x", normalise=True, matryoshka=(1, 2, 3))
    vector = recipe.vector(output, None, dimensions)
    assert len(vector) == dimensions
    assert np.linalg.norm(vector) == pytest.approx(1, rel=1e-6)
    np.testing.assert_allclose(
        vector * np.linalg.norm(output[0, :dimensions]), output[0, :dimensions], 1e-5
    )


def test_nothing_stays_nothing() -> None:
    recipe = Embedding(output="x", normalise=True)
    assert recipe.vector(np.zeros((1, 3), np.float32)).tolist() == [0, 0, 0]


@over(
    "case",
    {
        "no such output": (
            Embedding(output="y"),
            "float32",
            (1, 4),
            "no such output; there are 'x'",
        ),
        "no vector": (Embedding(output="x"), "float32", (1, 4, 2), "pooling 'none' is of a vector"),
        "several": (Embedding(output="x"), "float32", (2, 4), "a vector"),
        "one already": (
            Embedding(output="x", pooling="mean"),
            "float32",
            (1, 4),
            "a vector a token",
        ),
        "whole numbers": (Embedding(output="x"), "int64", (1, 4), "int64[1, 4]"),
        "longer": (
            Embedding(output="x", dimensions=5),
            "float32",
            (1, 4),
            "5 dimensions, of a vector of 4",
        ),
        "longer nested": (
            Embedding(output="x", matryoshka=(2, 9)),
            "float32",
            (1, 4),
            "9 dimensions",
        ),
        "unknown": (Embedding(output="x", pooling="max"), "float32", (1, -1, 4), "[1, -1, 4]"),
    }.values(),
)
def test_a_recipe_that_does_not_fit(case: tuple[Embedding, str, tuple[int, ...], str]) -> None:
    recipe, dtype, shape, words = case
    fault = embedding_fault(recipe, {"x": (dtype, shape)})
    assert fault is not None
    assert words in fault


def test_a_recipe_that_fits() -> None:
    outputs = {"x": ("float32", (1, 7, 4)), "y": ("float16", (1, 4, 1, 1))}
    assert embedding_fault(Embedding(output="x", pooling="cls", dimensions=4), outputs) is None
    assert embedding_fault(Embedding(output="y", matryoshka=(1, 2)), outputs) is None


def test_a_recipe_is_read_of_toml(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('output = "x"\npooling = "cls"\nnormalise = true\nmatryoshka = [64, 128]\n')
    assert read_embedding(file) == Embedding(
        output="x", pooling="cls", normalise=True, matryoshka=(64, 128)
    )
    file.write_text('output = "x"\npooling = "median"\n')
    with pytest.raises(ModelError, match=r"a\.toml:2"):
        read_embedding(file)
