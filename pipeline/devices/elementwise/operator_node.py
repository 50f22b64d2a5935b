"""Programs as nodes of ONNX Runtime: the operator `Chain` of kernels/custom_operator.c.

A session with such a node computes its chain on ONNX Runtime's own threads. It is opened with the native
library, ``open_piece(graph, threads, operators=library.path)``. Pieces and such nodes can be in one graph.
"""

import functools
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from models.runtime.sessions import SessionError, open_piece, run_session
from pipeline.devices.elementwise.messages import model, node
from pipeline.devices.elementwise.programs import (
    OPERATORS,
    WORTH_SHARING,
    NativeProgram,
    NativeStep,
)

DOMAIN = "layerstream"
OPERATOR = "Chain"
VERSION = 1
_MOST_AXES = 8

Shape = tuple[int, ...]


def chain_node(
    program: NativeProgram, shapes: Sequence[Shape], names: Sequence[str]
) -> bytes | None:
    """Return ``program`` as a serialised node; None: its ``shapes`` do not fit.

    ``shapes`` and ``names``: of its inputs, then of its results, all floats.
    """
    inputs, outputs = names[: program.n_inputs], names[program.n_inputs :]
    whole = shapes[program.n_inputs]
    strides = [strides_of(shape, whole) for shape in shapes]
    if None in strides or len(whole) > _MOST_AXES:
        return None
    numbers = [len(inputs), len(outputs), len(whole), len(program.steps), *whole]
    for stride in strides[: program.n_inputs]:
        numbers += stride or ()
    for operator, *places, p, q in program.steps:
        numbers += (operator, *places, _bits(p), _bits(q))
    return node(OPERATOR, DOMAIN, inputs, outputs, program=numbers)


def chain_model(program: NativeProgram, shapes: Sequence[Shape]) -> bytes | None:
    """Return a model of ``program`` alone, with the ports of ``chain_node``; None: as there.

    They are called x0, x1, ... and y0, y1, ...: models that do the same are the same.
    """
    inputs = [(f"x{number}", shape) for number, shape in enumerate(shapes[: program.n_inputs])]
    outputs = [(f"y{number}", shape) for number, shape in enumerate(shapes[program.n_inputs :])]
    only = chain_node(program, shapes, [name for name, _ in (*inputs, *outputs)])
    return None if only is None else model([only], inputs, outputs, [(DOMAIN, VERSION)])


def holds_chain(graph: bytes) -> bool:
    """Return whether a serialised graph may have chains: it names their domain."""
    return DOMAIN.encode() in graph


@functools.cache
def why_not_shared(library: Path) -> str | None:
    """Return why ONNX Runtime does not run chains of ``library`` on its threads; None: it was tried."""
    program = NativeProgram(1, 1, (NativeStep(OPERATORS.index("negative"), 1, 0, 0),))
    tried = np.arange(2 * WORTH_SHARING, dtype=np.float32)
    model = chain_model(program, [tried.shape, tried.shape])
    if model is None:
        return "its program is none"
    try:
        found = run_session(open_piece(model, operators=library), {"x0": tried})["y0"]
    except SessionError as exc:
        return f"ONNX Runtime takes no operator of ours: {str(exc)[:200]}"
    return None if np.array_equal(found, -tried) else "ONNX Runtime's threads give other numbers"


def strides_of(shape: Shape, whole: Shape) -> tuple[int, int] | None:
    """Return plane and width (library.Placed) of ``shape`` beside results of the shape ``whole``.

    None: it is neither as large nor one number for each channel.
    """
    shape = (*[1] * (len(whole) - len(shape)), *shape)
    if shape == whole:
        return 0, 0
    if len(shape) != len(whole):
        return None
    differing = [axis for axis, length in enumerate(whole) if shape[axis] != length]
    first, end = differing[0], differing[-1] + 1
    if any(length != 1 for length in shape[first:end]):
        return None
    width = int(np.prod(whole[end:], dtype=np.int64))
    return width * int(np.prod(whole[first:end], dtype=np.int64)), width


def _bits(number: float) -> int:
    (bits,) = struct.unpack("<I", struct.pack("<f", number))
    return int(bits)
