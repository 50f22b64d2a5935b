"""Operators on elements of a device in one pass: programs of pieces, bound to memory."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.packs.records.pieces import ElementProgram, Elementwise
from pipeline.devices.elementwise.library import Library, Placed
from pipeline.devices.elementwise.operator_node import (
    JOB_BYTES,
    Bind,
    JobSession,
    Shape,
    chain_model,
    strides_of,
)
from pipeline.devices.elementwise.programs import NativeProgram, native_program
from pipeline.devices.interface.native import WORTH_SHARING
from pipeline.program.kernels import Chain, CopyKernel

# What the native library takes for a program of operators on elements, where it runs it in one pass.

# What a launch of the library takes beside arrays: its structures, and what Python has around them.
# Measured 1.1 KB.
_BOUND_BYTES = 2 << 10
# A session with one chain, beside its message. Measured 24 to 27 KB.
_SESSION_BYTES = 34 << 10
# Both hold so many steps. What each further one takes: its structure, and beside that six integers, as
# ONNX Runtime reads them and as it keeps them.
_STEPS = 48
_STEP_BYTES, _NODE_STEP_BYTES = 24, 128


def chosen(
    item: Elementwise,
    program: ElementProgram,
    shapes: tuple[Shape, ...],
    are_sessions: bool,
) -> Chain | CopyKernel | None:
    """Return what runs ``program``, that of ``item``, on arrays of ``shapes``: those read, then those made.

    ``are_sessions``: ONNX Runtime's threads compute long chains, and those in one launch with others. None:
    the library does not run it.
    """
    results = shapes[program.n_inputs :]
    if not program.steps and all(shapes[value] == results[0] for value in program.results):
        sources = (item.reads[value] for value in program.results)
        return CopyKernel(tuple(zip(sources, item.makes, strict=True)))
    native = native_program(program)
    if native is None or any(strides_of(shape, results[0]) is None for shape in shapes):
        return None
    model = chain_model(native, shapes) if are_sessions else None
    more = max(len(native.steps) - _STEPS, 0)
    session_bytes = _SESSION_BYTES + more * _NODE_STEP_BYTES
    return Chain(
        elementwise=item,
        bound_bytes=_BOUND_BYTES + more * _STEP_BYTES,
        shared_elements=WORTH_SHARING if are_sessions else None,
        together_bytes=JOB_BYTES if are_sessions else 0,
        node_bytes=None if model is None else session_bytes + 2 * len(model),
    )


# Programs bound to memory.


class OnePass:
    """Programs by ``library``, on the thread that launches them.

    ``bind_model``: loads models with operators of ours; then ONNX Runtime's threads run long programs.
    """

    def __init__(self, library: Library, bind_model: Bind | None = None) -> None:
        self._library = library
        self._bind_model = bind_model

    @property
    def processor(self) -> str:
        """What the kernels were made for."""
        return self._library.processor

    def bind(
        self,
        program: NativeProgram,
        arrays: Sequence[NDArray[Any]],
        jobs: JobSession | None = None,
    ) -> Callable[[], None] | None:
        """Return what runs ``program`` on ``arrays``: what it reads, then its results.

        ``jobs``: runs it if it is long, on several threads.

        None: it cannot run on these, which are no floats, or neither as large as the results nor one
        number for each channel, or overlap and are not the same.
        """
        placed = _placed(program, arrays)
        if placed is None:
            return None
        size = arrays[program.n_inputs].size
        if size < WORTH_SHARING or jobs is None:
            return self._library.bind(program, placed, size)
        jobs.prepare()
        run = partial(jobs.run, self._library.hand_over_chain)
        return self._library.bind(program, placed, size, run)

    def kernel(
        self, item: Elementwise, program: ElementProgram, shapes: tuple[Shape, ...]
    ) -> Chain | CopyKernel | None:
        """Return what runs ``program``, as ``chosen``; None: it is not run here."""
        return chosen(item, program, shapes, self._bind_model is not None)

    def of_model(self) -> JobSession | None:
        """Return what runs the long programs of a model; None: the thread that launches them does."""
        return None if self._bind_model is None else JobSession(self._bind_model)

    def node(self, program: NativeProgram, arrays: Sequence[NDArray[Any]]) -> bytes | None:
        """Return ``program`` on ``arrays``, as of ``bind``, as a model of one node; None: it is none."""
        if self._bind_model is None or _placed(program, arrays) is None:
            return None
        return chain_model(program, [array.shape for array in arrays])


def _placed(program: NativeProgram, arrays: Sequence[NDArray[Any]]) -> list[Placed] | None:
    """Return where ``arrays`` lie; None: ``program`` does not run on them."""
    results = arrays[program.n_inputs :]
    placed: list[Placed] = []
    for array in arrays:
        strides = strides_of(array.shape, results[0].shape)
        if strides is None or array.dtype != np.float32 or not array.flags.c_contiguous:
            return None
        placed.append((array.ctypes.data, *strides))
    apart = (_apart(result, other) for result in results for other in arrays)
    return placed if all(apart) else None


def _apart(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Return whether two arrays are the same memory, or have none in common."""
    first, second = one.ctypes.data, other.ctypes.data
    same = first == second and one.nbytes == other.nbytes
    return same or first + one.nbytes <= second or second + other.nbytes <= first
