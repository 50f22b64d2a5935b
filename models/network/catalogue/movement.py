"""Operators that only move elements: into another shape, or to other positions."""

from typing import Any

from models.network.catalogue.records import (
    BYTES,
    DATA,
    PARAMETER,
    RESULT,
    SHAPE,
    OperandRecord,
    OperatorRecord,
    Quantisable,
    optional,
    record,
)
from models.network.names import Op


def _view(
    name: Op, *operands: OperandRecord, quantisable: Quantisable = "no", **attributes: Any
) -> OperatorRecord:
    """The first input under another name, perhaps in another shape."""
    return record(
        name,
        operands,
        "movement",
        "moved",
        attributes=attributes,
        keeps_order="yes",
        reshapes=True,
        passes_weights=True,
        quantisable=quantisable,
    )


def _move(
    name: Op,
    *operands: OperandRecord,
    passes_weights: bool = False,
    quantisable: Quantisable = "no",
    **attributes: Any,
) -> OperatorRecord:
    return record(
        name,
        operands,
        "movement",
        "moved",
        attributes=attributes,
        keeps_order="yes",
        passes_weights=passes_weights,
        quantisable=quantisable,
    )


_SHAPES = optional(SHAPE)
_VIEWS = (
    _view(Op.Dropout, DATA, *optional(PARAMETER, PARAMETER)),
    _view(Op.Flatten, DATA, axis=1),
    _view(Op.Identity, DATA),
    _view(Op.Reshape, DATA, SHAPE, quantisable="yes", allowzero=0),
    _view(Op.Squeeze, DATA, *_SHAPES, quantisable="yes"),
    _view(Op.Unsqueeze, DATA, *_SHAPES, quantisable="yes"),
)
_MOVES = (
    record(
        *(Op.Concat, (DATA,), "movement", "moved"),
        variadic=1,
        keeps_order="yes",
        quantisable="yes",
    ),
    record(
        *(Op.QLinearConcat, (*RESULT, *BYTES), "movement", "quantised"),
        of=Op.Concat,
        variadic=len(BYTES),
        keeps_order="yes",
        on_bytes=True,
    ),
    _move(Op.DepthToSpace, DATA, mode="DCR"),
    _move(Op.Expand, DATA, SHAPE),
    _move(Op.Gather, DATA, PARAMETER, axis=0),
    _move(Op.GatherElements, DATA, PARAMETER, axis=0),
    _move(Op.GatherND, DATA, PARAMETER, batch_dims=0),
    _move(Op.Pad, DATA, *optional(SHAPE, PARAMETER, SHAPE), quantisable="yes", mode="constant"),
    _move(Op.Slice, DATA, *optional(*[SHAPE] * 4), quantisable="yes"),
    _move(Op.SpaceToDepth, DATA),
    _move(Op.Split, DATA, *_SHAPES, quantisable="with_last_layer", axis=0),
    _move(Op.Tile, DATA, SHAPE),
    _move(Op.Transpose, DATA, passes_weights=True, quantisable="yes"),
    _move(Op.Trilu, DATA, *_SHAPES, upper=1),
    _move(Op.ReorderInput, DATA, channels_last=0),
    _move(Op.ReorderOutput, DATA, channels_last=0),
)

ROWS = (*_VIEWS, *_MOVES)
