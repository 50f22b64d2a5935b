"""Parts of a network that can run on some inner channels at a time (docs/explanation/bottlenecks.md)."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import PositiveInt

from models.network.fields import Count, Record, Shape, Shared
from models.network.windows import SAME, Window
from models.packs.records.pieces import Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInput(Record):
    """What an operator of a bottleneck reads: what operator ``made`` of it makes, a row value, or weights.

    ``axis``: along which a group of channels has its own part: "channels", the first axis above 1 of a
    tensor, a vector or weights, so that each group's lie together; "factors", the same, read as weights of
    one number a channel; "inputs", the second one of weights, where they do not; None: every group reads
    all of it. ``window``: which of its rows are needed.
    """

    made: Count | None = None
    row_value: Count | None = None
    weights: Annotated[Operand, Shared] | None = None
    axis: Literal["channels", "factors", "inputs"] | None = None
    window: Annotated[Window, Shared] = SAME


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOperator(Record):
    """An operator of a bottleneck; it makes ``shape``, or its channels of a group.

    ``kind`` says when it runs, and what ``graphs`` are:

    - "each": for every group. For each of the bottleneck's sizes four graphs: with the padding above and
      below, above only, none, below only: of all rows, the first, inner ones, the last.
    - "mean": for every group, of all rows; one graph. What it makes is kept for all groups.
    - "once": when all groups have run so far; one graph. Then what "each" made is made again.
    - "sum": for every group, the last operator: it adds what is the group's to ``shape``. Three graphs: of
      the first group with bias and what else is added, of later ones, of the last with the activation.

    ``scratch_bytes``: what its kernel allocates.
    """

    kind: Literal["each", "mean", "once", "sum"]
    graphs: tuple[Count, ...]
    inputs: Annotated[tuple[Annotated[GroupInput, Shared], ...], Shared]
    shape: Shape
    scratch_bytes: Count = 0

    @property
    def height(self) -> int:
        """Rows of what it makes."""
        return self.shape[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck(Record):
    """The pieces [first_piece, end_piece), some of ``channels`` inner channels at a time (seed 004).

    ``sizes``: how many a group may have, ascending, each twice the one before and a multiple of the block.
    The last operator makes the row value ``output``; sums over groups have other rounding than the whole.
    """

    first_piece: Count
    end_piece: Count
    channels: PositiveInt
    sizes: tuple[PositiveInt, ...]
    operators: tuple[GroupOperator, ...]
    output: Count
