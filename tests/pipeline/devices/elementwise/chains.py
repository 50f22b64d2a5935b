"""Running steps of the native library on arrays, for tests."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.devices.elementwise.library import Launcher, Library, find_library
from pipeline.devices.elementwise.programs import Program, Step

Floats = NDArray[np.float32]

found = find_library()
needs_library = pytest.mark.skipif(not isinstance(found, Library), reason=f"no library: {found}")


def library() -> Library:
    assert isinstance(found, Library)
    return found


def bound(program: Program, arrays: dict[str, Floats], threads: int = 1) -> Launcher:
    placed = {name: (array.ctypes.data, 0, 0) for name, array in arrays.items()}
    launch = library().bind(program, placed, arrays["x"].size, threads)
    assert launch is not None
    return launch


def computed(
    operator: str, x: Floats, *others: Floats, p: float = 0.0, q: float = 0.0, **options: Any
) -> Floats:
    """Return what one step makes of ``x``, in memory of its own."""
    result = np.full_like(x, 7)
    names = [f"x{number}" for number in range(len(others))]
    step = Step(operator, ("x", *names), "y", p, q)
    arrays = {"x": x, **dict(zip(names, others, strict=True)), "y": result}
    bound(Program((step,), frozenset("y")), arrays, **options)()
    return result
