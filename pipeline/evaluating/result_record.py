"""What a result of an evaluation holds, so that those who show it need not ask."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt

_Part = Annotated[float, Field(ge=0, le=1)]
_Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Record(BaseModel):
    """Other fields may be beside those it knows: a later version has more figures."""

    model_config = ConfigDict(strict=True, extra="ignore")


class _Cell(_Record):
    truth: str
    answer: str
    count: NonNegativeInt


class _Precision(_Record):
    pictures: NonNegativeInt = 0
    map50: _Part = 0.0
    ap50: dict[str, _Part] = {}


class _Agreement(_Precision):
    compared: NonNegativeInt = 0
    top1: _Part = 0.0
    largest_difference: _Positive = 0.0


class EvaluationResult(_Precision):
    """A result as ``evaluation.json`` has it; what was not counted is left out. Parts are from 0 to 1."""

    dataset: str
    samples: NonNegativeInt
    model: str = ""
    data: str = ""
    split: str | None = None
    against: str | None = None
    broken: list[str] = []
    not_numbers: list[str] = []
    sweep_ms: _Positive | None = None
    left_out: dict[str, NonNegativeInt] = {}
    labelled: NonNegativeInt = 0
    top1: _Part = 0.0
    top5: _Part = 0.0
    confusion: list[_Cell] = []
    agreement: _Agreement | None = None
