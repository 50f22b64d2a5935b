"""Texts on their way into a network: how they are cut, padded and masked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.network.fields import Array
from models.text.fakes import BEGIN, END, WordTokenizer
from models.text.recipe import (
    Side,
    TextInput,
    Tokens,
    inputs_fault,
    text_fault,
    text_inputs,
    token_mask,
)
from tests.examples import over

ROW = Array(dtype="int64", shape=(1, 6))
RECIPE = TextInput(max_tokens=6, vocabulary=100, memory_bytes=0, pad_id=9)
SIDES: tuple[Side, Side] = ("left", "right")


def of(**fields: object) -> TextInput:
    return TextInput(**{"max_tokens": 6, "vocabulary": 100, "memory_bytes": 0, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("side", SIDES)
def test_a_short_text_is_padded_on_its_side(side: Side) -> None:
    recipe = of(pad_id=9, pad_side=side)
    inputs = {
        "input_ids": ROW,
        "attention_mask": Array(dtype="int32", shape=(1, 6)),
        "token_type_ids": ROW,
        "position_ids": ROW,
    }
    arrays = text_inputs(recipe, inputs, Tokens([4, 5, 6], [0, 0, 1]))
    expected = {
        "input_ids": [4, 5, 6, 9, 9, 9],
        "attention_mask": [1, 1, 1, 0, 0, 0],
        "token_type_ids": [0, 0, 1, 0, 0, 0],
        "position_ids": [0, 1, 2, 0, 0, 0],
    }
    for name, row in expected.items():
        assert arrays[name].dtype == inputs[name].dtype
        assert arrays[name].tolist() == [row if side == "right" else row[3:] + row[:3]]
    mask = token_mask(recipe, 6, 3)
    assert mask.tolist() == arrays["attention_mask"][0].astype(bool).tolist()


def test_only_the_inputs_that_there_are() -> None:
    assert list(text_inputs(RECIPE, {"input_ids": ROW}, Tokens([1], [0]))) == ["input_ids"]


@over(
    "case",
    {
        "no ids": ({"x": ROW}, "no input 'input_ids'"),
        "a picture": ({"input_ids": ROW, "pixel_values": ROW}, "takes 'pixel_values', too"),
        "floats": ({"input_ids": Array(dtype="float32", shape=(1, 6))}, "float32[1, 6]"),
        "several texts": ({"input_ids": Array(dtype="int64", shape=(2, 6))}, "int64[2, 6]"),
        "another length": (
            {"input_ids": ROW, "attention_mask": Array(dtype="int64", shape=(1, 7))},
            "'attention_mask' is int64[1, 7]",
        ),
        "any length": ({"input_ids": Array(dtype="int64", shape=(1, -1))}, "int64[1, -1]"),
    }.values(),
)
def test_a_network_without_texts(case: tuple[dict[str, Array], str]) -> None:
    inputs, words = case
    assert words in (inputs_fault(inputs) or "")
    assert words in (text_fault(RECIPE, inputs) or "")


def test_a_recipe_of_another_network() -> None:
    assert "7 tokens" in (text_fault(of(max_tokens=7), {"input_ids": ROW}) or "")
    assert "pad_id 100" in (text_fault(of(pad_id=100), {"input_ids": ROW}) or "")
    assert text_fault(RECIPE, {"input_ids": ROW}) is None


@given(st.text(max_size=300), st.integers(1, 400), st.sampled_from(SIDES))
def test_a_cut_is_an_end_of_the_text_and_as_short_as_requested(
    text: str, n: int, side: Side
) -> None:
    recipe = of(cut_side=side)
    rest = recipe.cut(text, n)
    assert len(rest.encode()) <= n
    assert text.startswith(rest) if side == "right" else text.endswith(rest)
    if len(text.encode()) <= n:
        assert rest == text


def test_a_text_is_cut_between_words() -> None:
    assert of().cut("one two three", 10) == "one two"
    assert of(cut_side="left").cut("one two three", 10) == " two three"
    assert of().cut("onetwothree", 10) == "onetwothre"


@given(st.integers(1, 10**7), st.integers(1, 8192))
def test_longer_and_longer_parts_are_tried(n_bytes: int, max_tokens: int) -> None:
    cuts = list(of(max_tokens=max_tokens, vocabulary=2).cuts(n_bytes))
    assert cuts == sorted(set(cuts))
    assert cuts[-1] == min(n_bytes, max(128 * max_tokens, 1024))
    assert cuts[0] <= max(16 * max_tokens, 1024)
    assert len(cuts) <= 5


def test_what_comes_before_every_text() -> None:
    assert of(prompt="Query: ", lowercase=True).prepared("What") == "query: what"


def test_the_fake_has_a_token_a_word() -> None:
    tokens = WordTokenizer(of()).encode("a b c")
    assert (tokens.ids[0], tokens.ids[-1], len(tokens.ids), tokens.is_cut) == (BEGIN, END, 5, False)
    assert WordTokenizer(of()).encode("a b c d e") == Tokens(
        WordTokenizer(of()).encode("a b c d").ids, [0] * 6, True
    )
    left = WordTokenizer(of(cut_side="left")).encode("a b c d e")
    assert left.ids == WordTokenizer(of()).encode("b c d e").ids
    assert np.max(tokens.ids) < RECIPE.vocabulary
