"""Records that are read from JSON: what is equal comes back, and what is wrong is named."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from models.records import (
    SHARED,
    Bounds,
    Check,
    FieldError,
    FiniteFloat,
    NonNegativeInt,
    NotJsonError,
    Record,
    plain,
    read_json,
    read_record,
    to_json,
)
from tests.examples import over


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("odd")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(Record):
    radius: Annotated[float, Bounds(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Square(Record):
    side: Annotated[int, Check(_even)]
    corner: Literal["sharp", "soft"] = "sharp"


@dataclass(frozen=True, kw_only=True)
class Lid(Record):
    name: str
    notes: Mapping[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name == "wrong":
            raise ValueError("a wrong name")


@dataclass(frozen=True, kw_only=True)
class Box(Record):
    name: Annotated[str, SHARED]
    shapes: tuple[Annotated[Round | Square, SHARED], ...] = ()
    pair: tuple[NonNegativeInt, NonNegativeInt] = (0, 0)
    weight: FiniteFloat | None = None
    inner: Lid | None = None


SHAPES = st.builds(Round, radius=st.floats(0.1, 1e300)) | st.builds(
    Square, side=st.integers().map(lambda n: 2 * n), corner=st.sampled_from(["sharp", "soft"])
)
BOXES = st.builds(
    Box,
    name=st.text(),
    shapes=st.lists(SHAPES, max_size=4).map(tuple),
    pair=st.tuples(st.integers(0, 1 << 60), st.integers(0, 9)),
    weight=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    inner=st.none()
    | st.builds(
        Lid,
        name=st.text().filter(lambda text: text != "wrong"),
        notes=st.dictionaries(st.text(), st.booleans(), max_size=3),
    ),
)


@given(box=BOXES, without_defaults=st.booleans(), indent=st.none() | st.integers(0, 3))
def test_what_is_written_is_read(box: Box, without_defaults: bool, indent: int | None) -> None:
    document = plain(box, without_defaults=without_defaults)
    for text in (
        to_json(document) if _fits_64_bits(box) else "",
        json.dumps(document, indent=indent),
    ):
        assert not text or read_json(Box, text) == read_json(Box, text.encode()) == box
    assert read_record(Box, document) == box


def _fits_64_bits(box: Box) -> bool:
    sides = [shape.side for shape in box.shapes if isinstance(shape, Square)]
    return all(-(1 << 63) <= side < 1 << 63 for side in sides)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "name: Field required"),
    ({"name": 1}, "name: Input should be a valid string"),
    ({"name": "a", "colour": 1}, "colour: Extra inputs are not permitted"),
    ({"name": "a", "shapes": {}}, "shapes: Input should be a valid array"),
    (
        {"name": "a", "shapes": [{"radius": 1}, {"radius": 0}]},
        "shapes.1.radius: Input should be gr",
    ),
    ({"name": "a", "shapes": [{"side": 3}]}, "shapes.0.side: odd"),
    ({"name": "a", "shapes": [{"side": 2, "corner": "x"}]}, "shapes.0"),
    ({"name": "a", "shapes": [3]}, "shapes.0: Input should be an object"),
    ({"name": "a", "pair": [1]}, "pair: Input should have 2 items, not 1"),
    ({"name": "a", "pair": [1, -1]}, "pair.1: Input should be greater than or equal to 0"),
    ({"name": "a", "pair": [1, True]}, "pair.1: Input should be a valid integer"),
    ({"name": "a", "pair": [1, 1.0]}, "pair.1: Input should be a valid integer"),
    ({"name": "a", "weight": "1"}, "weight: Input should be a valid number"),
    (
        {"name": "a", "inner": {"name": "b", "notes": {"x": 0}}},
        "inner.notes.x: Input should be a v",
    ),
    ({"name": "a", "inner": {"name": "wrong"}}, "inner: a wrong name"),
]


@over("document, message", WRONG)
def test_what_is_wrong_is_named(document: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError) as caught:
        read_record(Box, document)
    assert str(caught.value).startswith(message)
    with pytest.raises(FieldError) as again:
        read_json(Box, json.dumps(document))
    assert str(again.value) == str(caught.value)
    with pytest.raises(ValidationError):
        TypeAdapter(Box).validate_python(document, strict=True)


@over(
    "text",
    [
        *(
            "",
            "{",
            '{"name"',
            '{"name": }',
            '{"name": "a"} {',
            '{"name": "a",}',
            "{'name': 1}",
            "\xff",
        ),
        *('{"name": "\\ud800"}', '{"name": "a", "weight": NaN}', '{"name": "a", "pair": [1 2]}'),
        '{"name": "a", "inner": ' + 100_000 * '{"inner": ',
        '{"name": "a", "pair": ' + 100_000 * "[",
        '{"name": "a", "shapes": [{"side": ' + 5000 * "9" + "}]}",
    ],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(NotJsonError):
        read_json(Box, text.encode("latin-1"))


def test_what_is_equal_is_one_object() -> None:
    document = {"name": "a", "shapes": 2 * [{"radius": 2}]}
    box = read_json(Box, json.dumps(document))
    first, second = box.shapes
    assert first is second


@over("text", ["[]", "3", '"name"'])
def test_a_record_is_an_object(text: str) -> None:
    with pytest.raises(FieldError, match="Input should be an object"):
        read_json(Box, text)


def test_an_infinite_number_is_none() -> None:
    with pytest.raises(FieldError, match="weight: Input should be a finite number"):
        read_json(Box, '{"name": "a", "weight": 1e999}')
