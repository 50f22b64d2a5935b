"""Which requests run next, and how many share a sweep."""

from typing import Annotated, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from server.settings.group import Default, Group, Seconds
from server.settings.lanes import MOST_LANES, check_lanes, check_preferred
from server.settings.per_model import parse_per_model, whole

_Lanes = dict[str, Annotated[int, Field(ge=1, le=MOST_LANES)]]


class SchedulingSettings(Group):
    """Which requests run next, and how many share a sweep."""

    title: ClassVar[str] = "Scheduling"

    deadline: Annotated[dict[str, Seconds], Default("as request_timeout")] = Field(
        {},
        description="For an answer where the request has no timeout. Requests that would miss the deadline "
        "are rejected immediately.",
    )
    lanes: Annotated[_Lanes, Default("1 a model")] = Field(
        {},
        description="Requests answered per pass over the weights of a model (batch size), at most; each "
        "takes an arena of the budget, and there are as many as have room.",
    )
    preferred_lanes: Annotated[_Lanes, Default("as lanes")] = Field(
        {}, description="Requests at which a sweep waits for no more."
    )
    lane_delay: Annotated[dict[str, Seconds], Default("0 of each model")] = Field(
        {}, description="How long a sweep that has room waits for more requests."
    )

    @field_validator("lanes", "preferred_lanes", mode="before")
    @classmethod
    def _by_model(cls, value: object) -> object:
        return parse_per_model(value, whole)

    @field_validator("deadline", "lane_delay", mode="before")
    @classmethod
    def _times_by_model(cls, value: object) -> object:
        return parse_per_model(value, float, "0.2")

    @field_validator("lanes")
    @classmethod
    def _one_request_each(cls, value: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        check_lanes(value, info.data.get("workers", {}))
        return value

    @field_validator("preferred_lanes")
    @classmethod
    def _carried(cls, value: dict[str, int], info: ValidationInfo) -> dict[str, int]:
        check_preferred(value, info.data.get("lanes", {}))
        return value
