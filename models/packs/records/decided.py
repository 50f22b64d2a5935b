"""What a device decides of a pack that it is to run: part of a manifest in memory, never of its file.

Plans count by it, and kernels are bound by it; nothing looks again.
"""

from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import AfterValidator, Field

from models.network.fields import Count, Record

T = TypeVar("T")


def not_of_a_file(value: T) -> T:
    """Return ``value``, which is none; raises ValueError."""
    if value:
        raise ValueError("a device says so, not a manifest")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Native(Record):
    """How a device runs a piece by kernels of its own, with no session: it decides so once.

    ``by_rows``: its first input may stay with the request, of which it takes rows. ``workspace_bytes``:
    what it may take where more or less does. ``bound_bytes``: what each such piece takes when it is bound
    to memory; ``together_bytes``: what they all share, once for all of a model.
    """

    by_rows: bool = False
    workspace_bytes: Count = 0
    bound_bytes: Count = 0
    together_bytes: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain(Record):
    """That a device runs ``elementwise`` of a piece or row operator in one pass, and what that takes.

    Alone it has no session and takes ``bound_bytes`` when it is bound; what makes ``shared_elements`` or
    more (None: nothing) is computed by threads for which a model takes ``together_bytes``, once. In one
    launch with others it is a node of their session, for its program on arrays of one list of shapes, and
    takes ``node_bytes``, as much as a session of its own; None: it is never one of several.
    """

    bound_bytes: Count = 0
    shared_elements: Count | None = None
    together_bytes: Count = 0
    node_bytes: Count | None = None


#: What no file says: of a piece that a session runs as it was compiled None.
IsNative = Annotated[Native | None, Field(exclude=True), AfterValidator(not_of_a_file)]
IsChain = Annotated[Chain | None, Field(exclude=True), AfterValidator(not_of_a_file)]
