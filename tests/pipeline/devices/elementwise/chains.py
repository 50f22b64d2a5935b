"""Running steps of the native library on arrays, for tests."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from models.packs.records.pieces import ElementProgram, ElementStep
from pipeline.devices.elementwise.library import Launcher, Library, find_library
from pipeline.devices.elementwise.programs import NativeProgram, NativeStep, native_program
from pipeline.devices.interface.native import OPERATORS

Floats = NDArray[np.float32]

found = find_library()
needs_library = pytest.mark.skipif(not isinstance(found, Library), reason=f"no library: {found}")


def library() -> Library:
    assert isinstance(found, Library)
    return found


def native(*steps: ElementStep, n_inputs: int = 1, results: tuple[int, ...] = ()) -> NativeProgram:
    """Return what the library runs of ``steps``; ``results``: the last value if none are given."""
    last = n_inputs + len(steps) - 1
    program = ElementProgram(n_inputs=n_inputs, steps=steps, results=results or (last,))
    made = native_program(program)
    assert made is not None
    return made


def only(operator: str, n_inputs: int = 1, p: float = 0.0, q: float = 0.0) -> NativeProgram:
    """Return a program of one step of the library."""
    step = NativeStep(OPERATORS.index(operator), n_inputs, 0, n_inputs - 1, p, q)
    return NativeProgram(n_inputs, (step,))


def bound(program: NativeProgram, arrays: Sequence[Floats]) -> Launcher:
    placed = [(array.ctypes.data, 0, 0) for array in arrays]
    return library().bind(program, placed, arrays[0].size)


def computed(operator: str, x: Floats, *others: Floats, p: float = 0.0, q: float = 0.0) -> Floats:
    """Return what one step makes of ``x``, in memory of its own."""
    result = np.full_like(x, 7)
    bound(only(operator, 1 + len(others), p, q), [x, *others, result])()
    return result
