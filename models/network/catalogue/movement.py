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
    Versions,
    record,
    sizing,
)


def _view(
    name: Op,
    versions: Versions,
    read: Reader,
    *operands: OperandRecord,
    quantisable: Quantisable = "no",
    **attributes: Any,
) -> OperatorRecord:
    """The first input under another name, perhaps in another shape."""
    return record(
        name,
        versions,
        operands,
        "movement",
        "moved",
        attributes=attributes,
        read=read,
        keeps_order="yes",
        copies=True,
        reshapes=True,
        passes_weights=True,
        quantisable=quantisable,
    )


def _move(
    name: Op,
    versions: Versions,
    read: Reader | None,
    *operands: OperandRecord,
    copies: bool = True,
    passes_weights: bool = False,
    quantisable: Quantisable = "no",
    **attributes: Any,
) -> OperatorRecord:
    return record(
        name,
        versions,
        operands,
        "movement",
        "moved",
        attributes=attributes,
        read=read,
        keeps_order="yes",
        copies=copies,
        passes_weights=passes_weights,
        quantisable=quantisable,
    )


_SHAPES = (SHAPE,)
_VIEWS = (
    _view(Op.Dropout, (7, 10, 12, 13, 22), moving.dropout, DATA, PARAMETER, PARAMETER),
    _view(Op.Flatten, (1, 9, 11, 13, 21, 23, 24, 25), moving.flatten, DATA, axis=1),
    _view(Op.Identity, (1, 13, 14, 16, 19, 21, 23, 24, 25), moving.identity, DATA),
    _view(
        Op.Reshape,
        (1, 5, 13, 14, 19, 21, 23, 24, 25),
        moving.reshape,
        DATA,
        SHAPE,
        quantisable="yes",
        allowzero=0,
    ),
    _view(
        Op.Squeeze, (1, 11, 13, 21, 23, 24, 25), moving.squeeze, DATA, *_SHAPES, quantisable="yes"
    ),
    _view(
        Op.Unsqueeze,
        (1, 11, 13, 21, 23, 24, 25),
        moving.unsqueeze,
        DATA,
        *_SHAPES,
        quantisable="yes",
    ),
)
_CONCAT = record(
    *(Op.Concat, (4, 11, 13), (DATA,), "movement", "moved"),
    variadic=1,
    read=moving.concat,
    keeps_order="yes",
    limited="chosen",
    quantisable="yes",
)
_MOVES = (
    _CONCAT,
    record(
        *(Op.QLinearConcat, (1,), (*RESULT, *BYTES), "movement", "quantised"),
        of=Op.Concat,
        variadic=len(BYTES),
        read=on_bytes(_CONCAT),
        keeps_order="yes",
        on_bytes=True,
    ),
    _move(Op.DepthToSpace, (1, 11, 13, 28), moving.depth_to_space, DATA, mode="DCR"),
    _move(Op.Expand, (8, 13), moving.expand, DATA, sizing(SHAPE)),
    _move(Op.Gather, (1, 11, 13), moving.gather, DATA, PARAMETER, axis=0),
    _move(Op.GatherElements, (11, 13), None, DATA, PARAMETER, axis=0),
    _move(Op.GatherND, (11, 12, 13), None, DATA, PARAMETER, batch_dims=0),
    _move(
        Op.Pad,
        (2, 11, 13, 18, 19, 21, 23, 24, 25),
        moving.pad,
        DATA,
        sizing(SHAPE),
        PARAMETER,
        SHAPE,
        copies=False,
        quantisable="yes",
        mode="constant",
    ),
    _move(Op.Slice, (1, 10, 11, 13), moving.slice_, DATA, *[SHAPE] * 4, quantisable="yes"),
    _move(Op.SpaceToDepth, (1, 13, 28), moving.space_to_depth, DATA, mode="DCR"),
    _move(
        Op.Split,
        (2, 11, 13, 18),
        moving.split,
        DATA,
        *_SHAPES,
        quantisable="with_last_layer",
        axis=0,
    ),
    _move(Op.Tile, (6, 13), moving.tile, DATA, sizing(SHAPE)),
    _move(
        Op.Transpose,
        (1, 13, 21, 23, 24, 25),
        moving.transpose,
        DATA,
        passes_weights=True,
        quantisable="yes",
    ),
    _move(Op.Trilu, (14,), None, DATA, *_SHAPES, copies=False, upper=1),
    _move(Op.ReorderInput, (1,), None, DATA, copies=False, channels_last=0),
    _move(Op.ReorderOutput, (1,), None, DATA, channels_last=0),
)

ROWS = (*_VIEWS, *_MOVES)
