"""Memory for models and their requests, and what a load that does not fit comes to."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from server.settings.group import Default, Group, Names
from server.settings.per_model import ALL
from server.settings.sizes import Size


class MemorySettings(Group):
    """Memory for models and their requests, and what a load that does not fit comes to."""

    title: ClassVar[str] = "Memory"

    budget: Size = Field(description="Memory for all models and their requests.")
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
