"""Memory for models and their requests, and what a load that does not fit comes to."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from server.settings.group import Default, Group, Names
from server.settings.per_model import ALL
from server.settings.sizes import Size


class MemorySettings(Group):
    """Memory for models and their requests, and what a load that does not fit comes to."""

    title: ClassVar[str] = "Memory"

    memory: Annotated[Size | None, Default("no limit on the process itself")] = Field(
        None,
        description="Memory for all of the process: interpreter, libraries, models and requests; what the "
        "process takes by itself is taken off, and the rest is the budget. Instead of budget.",
    )
    budget: Annotated[Size | None, Default("what memory leaves")] = Field(
        None,
        description="Memory for all models and their requests. This or memory must be given.",
    )
    request_memory: Annotated[
        Size | None,
        Default("an eighth of the budget up to 64MiB, more where models need it"),
    ] = Field(None, description="Part of the budget for requests in flight.")
    activations: Literal["auto", "own", "shared"] = Field(
        "auto",
        description="Memory of activations. own: each model has its own, one reads while another computes; "
        "shared: they run in turns in that of the largest; auto: in turns if more models fit so.",
    )

    budget_policy: Literal["refuse", "evict-lru"] = Field(
        "refuse",
        description="What a load that does not fit comes to. refuse: an error; evict-lru: the least "
        "recently used models are evicted, and the next request to one loads it again.",
    )
    evictable: Annotated[Names, Default("all")] = Field(
        (ALL,), description="Models that may go so; names separated by commas."
    )

    @field_validator("budget")
    @classmethod
    def _one_of_two(cls, value: object, info: ValidationInfo) -> object:
        memory = info.data.get("memory", ...)  # ...: it is wrong, and said to be
        if value is None and memory is None:
            raise PydanticCustomError("missing", "neither", {"instead": "memory"})
        if value is not None and memory is not None and memory is not ...:
            raise ValueError("memory is given, too, and says it: give one of them")
        return value
