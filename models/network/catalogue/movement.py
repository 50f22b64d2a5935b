"""Operators that only move elements: into another shape, or to other positions."""

from typing import Any

from models.network.names import Op
from models.network.operators import movement as moving
from models.network.operators.on_bytes import on_bytes
from models.network.records import (
    BYTES,
    DATA,
    PARAMETER,
    RESULT,
    SHAPE,
    OperandRecord,
    OperatorRecord,
    Quantisable,
    Reader,
    optional,
    record,
)


def _view(
    name: Op,
    read: Reader,
    *operands: OperandRecord,
    quantisable: Quantisable = "no",
    **attributes: Any,
) -> OperatorRecord:
    """The first input under another name, perhaps in another shape."""
    return record(
        name,
        operands,
        "movement",
        "moved",
        attributes=attributes,
        read=read,
        keeps_order="yes",
        reshapes=True,
        passes_weights=True,
        quantisable=quantisable,
    )


def _move(
    name: Op,
    read: Reader | None,
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
        read=read,
        keeps_order="yes",
        passes_weights=passes_weights,
        quantisable=quantisable,
    )


_SHAPES = optional(SHAPE)
_VIEWS = (
    _view(Op.Dropout, moving.dropout, DATA, *optional(PARAMETER, PARAMETER)),
    _view(Op.Flatten, moving.flatten, DATA, axis=1),
    _view(Op.Identity, moving.identity, DATA),
    _view(Op.Reshape, moving.reshape, DATA, SHAPE, quantisable="yes", allowzero=0),
    _view(Op.Squeeze, moving.squeeze, DATA, *_SHAPES, quantisable="yes"),
    _view(Op.Unsqueeze, moving.unsqueeze, DATA, *_SHAPES, quantisable="yes"),
)
_CONCAT = record(
    *(Op.Concat, (DATA,), "movement", "moved"),
    variadic=1,
    read=moving.concat,
    keeps_order="yes",
    quantisable="yes",
)
_MOVES = (
    _CONCAT,
    record(
        *(Op.QLinearConcat, (*RESULT, *BYTES), "movement", "quantised"),
        of=Op.Concat,
        variadic=len(BYTES),
        read=on_bytes(_CONCAT),
        keeps_order="yes",
        on_bytes=True,
    ),
    _move(Op.DepthToSpace, moving.depth_to_space, DATA, mode="DCR"),
    _move(Op.Expand, moving.expand, DATA, SHAPE),
    _move(Op.Gather, moving.gather, DATA, PARAMETER, axis=0),
    _move(Op.GatherElements, None, DATA, PARAMETER, axis=0),
    _move(Op.GatherND, None, DATA, PARAMETER, batch_dims=0),
    _move(
        Op.Pad,
        moving.pad,
        DATA,
        *optional(SHAPE, PARAMETER, SHAPE),
        quantisable="yes",
        mode="constant",
    ),
    _move(Op.Slice, moving.slice_, DATA, *optional(*[SHAPE] * 4), quantisable="yes"),
    _move(Op.SpaceToDepth, moving.space_to_depth, DATA),
    _move(Op.Split, moving.split, DATA, *_SHAPES, quantisable="with_last_layer", axis=0),
    _move(Op.Tile, moving.tile, DATA, SHAPE),
    _move(Op.Transpose, moving.transpose, DATA, passes_weights=True, quantisable="yes"),
    _move(Op.Trilu, None, DATA, *_SHAPES, upper=1),
    _move(Op.ReorderInput, None, DATA, channels_last=0),
    _move(Op.ReorderOutput, None, DATA, channels_last=0),
)

ROWS = (*_VIEWS, *_MOVES)
